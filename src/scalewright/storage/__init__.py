"""Object stores by URL (s3://, gs://, az://, file://), and a folder on this node as a copy of a place in one.

objects.py   put, get_range, list, delete over obstore; its errors in one sentence
mirror.py    a place fetched into a folder of the cache, once a node, whatever is there already left out
publish.py   a folder written to a place, one named file last

It knows nothing of what the files are: checkpoints in a store are the subject of checkpoint/store/, token shards' of
data/remote.py.
"""
