"""A served model in an engine's words: launch lines (vLLM, SGLang, TensorRT-LLM, llama.cpp) and manifests (Kubernetes).

answer of `inference --json` ──deployment.py──► Deployment ──engines.py──► flags ──lines.py──► serve.sh
                                                                              └──manifests.py──► deploy.yaml
What an engine has no word for is reported by name, as trainers' settings are.
"""
