"""Writes gguf_tensors.json: what llama.cpp's convert_hf_to_gguf.py makes of the decoders' fixtures; and
gguf_pieces.json: a small SentencePiece model as transformers has it, with the model's own scores.

  make_gguf_golden.py LLAMA.CPP    its source folder (of a release, or of llama-cpp-python's source package)

For every decoder_<name>.safetensors that Snug writes as GGUF: the tensors' names, shapes (outermost first) and CRC-32
of their F32 bytes, and the keys of the architecture. rope_freqs, which are computed, as numbers. A tied head that only
Snug writes twice is not there. Files without their tokenizers: the fixtures have none.
"""
import json
import pathlib
import sys
import tempfile
import zlib

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
NAMES = "a b d e f g h k n q r s u x".split()


def convert(name, out):
    import gguf
    from conversion import get_model_class

    file = safe_open(HERE / f"decoder_{name}.safetensors", "np")
    # Both spellings: the converter reads now this, now that.
    config = json.loads(file.metadata()["config"]) | json.loads(file.metadata()["config_published"])
    with tempfile.TemporaryDirectory() as folder:
        # Gradients and the like stand beside the parameters, under names of their own.
        weights = {k: file.get_tensor(k) for k in file.keys() if "." in k and not k.startswith("grad.")}
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        save_file({k: v.astype(np.float32) for k, v in weights.items()}, pathlib.Path(folder) / "model.safetensors")
        cls = get_model_class(config["architectures"][0])
        own = type("Own", (cls,), {"set_vocab": lambda self: None, "model_arch": cls.model_arch})
        model = own(pathlib.Path(folder), gguf.LlamaFileType.ALL_F32, pathlib.Path(out), model_name="m")
        if "rotary_pct" in config:  # transformers 5 has it under another name
            model.hparams["rotary_pct"] = config["rotary_pct"]
        # Gemma 3 cuts rows off that have no token; here all have one.
        if name in "qr":
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(
                {"model": {"vocab": {str(i): i for i in range(config["vocab_size"])}}, "added_tokens": []}))
        model.write()
    reader = gguf.GGUFReader(out)
    arch = reader.fields["general.architecture"].contents()
    keys = {k.removeprefix(arch + "."): f.contents() for k, f in reader.fields.items() if k.startswith(arch + ".")}
    tensors = {}
    for t in reader.tensors:
        data = np.ascontiguousarray(t.data)
        tensors[t.name] = [[int(n) for n in t.shape[::-1]], zlib.crc32(data.tobytes())]
        if t.name.startswith("rope_f"):
            tensors[t.name] = [float(x) for x in data.ravel()]
    return {"architecture": arch, "keys": keys, "tensors": tensors}


def pieces():
    import sentencepiece as sp
    from gguf_families import sentence_piece

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        sentence_piece(folder, "llama", 460)
        model = sp.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
    # Of pieces that merges make: what others have decides nothing.
    scores = {model.id_to_piece(i): model.get_score(i) for i in range(460)
              if not (model.is_byte(i) or model.is_control(i) or model.is_unknown(i)) and len(model.id_to_piece(i)) > 1}
    path = HERE / "gguf_pieces.json"
    path.write_text(json.dumps({"tokenizer": tokenizer, "scores": scores}, ensure_ascii=False) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    pieces()
    sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            out[name] = convert(name, f"{folder}/{name}.gguf")
    path = HERE / "gguf_tensors.json"
    path.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v, sort_keys=True)}' for k, v in out.items()) + "\n}\n")
    print(f"{path}: {path.stat().st_size} bytes")
