"""Writes a GGUF model as a Hugging Face folder with fp32 weights: to_hf.py MODEL.gguf FOLDER"""
import os
import sys

import torch
import transformers

source, target = sys.argv[1:]
folder, file = os.path.split(os.path.abspath(source))
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
config = loaded.config
if hasattr(config, "quantization_config"):
    del config.quantization_config  # the weights are plain by now
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
model.load_state_dict(loaded.state_dict())
tokenizer.save_pretrained(target)
model.save_pretrained(target)
