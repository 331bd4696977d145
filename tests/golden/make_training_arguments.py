"""training_arguments.json: what transformers' TrainingArguments writes with nothing set but output_dir.

    pip install transformers accelerate torch
    python tests/golden/make_training_arguments.py

`defaults` is TrainingArguments(output_dir="out", use_cpu=True).to_dict(); use_cpu is then put back, since without it the
class asks for a GPU that need not be there.
"""

import json
import pathlib

import transformers

arguments = transformers.TrainingArguments(output_dir="out", use_cpu=True).to_dict()
arguments["use_cpu"] = False
path = pathlib.Path(__file__).parent / "training_arguments.json"
path.write_text(json.dumps({"transformers": transformers.__version__, "defaults": arguments}, indent=1) + "\n")
