"""A page to play with a layout: every slider's answer at once, live from a small server or frozen in one file.

slider ──► state.py   a query: model=…&devices=64&tp=8      (also the link that restores it)
       ──► answer.py  that layout's price, drawn by the report's own sections; roofline.py its operators
       ──► page       assets/explore.js puts it in place; uPlot draws the plots

server.py  answers one page over HTTP      frozen.py  the answers of a search's layouts, inside the page
"""
