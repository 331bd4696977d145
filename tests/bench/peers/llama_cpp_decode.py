"""Decoding of a model by Snug and by llama.cpp on one thread each, in turns: processor time of a token.

  llama_cpp_decode.py --snug SNUG --model FOLDER [--dtype f32|bf16] [--pairs 5] [--tokens 64] [--prefill]

--prefill times the tokens of a prompt instead: one of about --tokens tokens, one new token.

The GGUF file is made by `snug convert`. A run with few new tokens is taken off one with many, so that start and
prompt do not count; processor time, and one thread, since that means something on a busy machine too. Every pair has
Snug twice: the ratio of the two is the noise. Needs llama-cpp-python.
"""
import argparse
import resource
import statistics
import subprocess
import sys
import tempfile

PROMPT = "The river runs down to the sea, and the people who live beside"


def spent(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def prompt(sentences):
    return " ".join([PROMPT] * sentences)


def llama(path, tokens, sentences):
    import numpy as np
    import llama_cpp

    llm = llama_cpp.Llama(model_path=path, n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)
    llm.eval(llm.tokenize(prompt(sentences).encode()))
    for _ in range(tokens):
        row = llama_cpp.llama_get_logits_ith(llm._ctx.ctx, -1)
        llm.eval([int(np.ctypeslib.as_array(row, shape=(llm.n_vocab(),)).argmax())])


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--snug", "--model", "--gguf"):
        parser.add_argument(flag)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=1)
    parser.add_argument("--prefill", action="store_true")
    a = parser.parse_args()
    if a.gguf:
        return llama(a.gguf, a.tokens, a.sentences)
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/model.gguf"
        subprocess.run([a.snug, "convert", "--model", a.model, "--to", "gguf", "--dtype", a.dtype, "--output", path],
                       check=True, stdout=subprocess.DEVNULL)

        def snug(tokens, sentences):
            return spent([a.snug, "generate", "--model", a.model, "--prompt", prompt(sentences), "--temperature", "0",
                          "--threads", "1", "--precision", {"f32": "fp32"}.get(a.dtype, a.dtype), "--min-new-tokens",
                          str(tokens), "--max-new-tokens", str(tokens)])

        def theirs(tokens, sentences):
            return spent([sys.executable, __file__, "--gguf", path, "--tokens", str(tokens), "--sentences",
                          str(sentences)])

        words = 14  # tokens of PROMPT, about
        long, short = ((1, a.tokens // words + 1), (1, 1)) if a.prefill else ((a.tokens + 4, 1), (4, 1))
        counted = (long[1] - 1) * words if a.prefill else a.tokens
        rows = []
        for _ in range(a.pairs):
            rows.append([1000 * (run(*long) - run(*short)) / counted for run in (snug, theirs, snug)])
        for name, k in (("Snug", 0), ("llama.cpp", 1), ("Snug again", 2)):
            print(f"{name}: {statistics.median(r[k] for r in rows):.2f} ms a token "
                  f"({', '.join(f'{r[k]:.2f}' for r in rows)})")
        print(f"llama.cpp / Snug {statistics.median(r[1] / r[0] for r in rows):.2f}, Snug / Snug "
              f"{statistics.median(r[2] / r[0] for r in rows):.2f}")


if __name__ == "__main__":
    main()
