#!/usr/bin/env python3
"""Fine-tunes an encoder folder on a TSV of sentence TAB class with the Trainer of transformers: a peer to compare with by hand.

    python3 bert_sst2_transformers.py MODEL TRAIN.tsv DEV.tsv --seed 1 --epochs 3 --batch-size 32 --lr 5e-5 --max-length 128 [--bf16] [--group-by-length]

Linear schedule without warm-up, AdamW with weight decay 0.01, dropout as the folder says, batches padded to their
longest row. Prints one line of JSON: accuracy on DEV after the last epoch, training sequences per second (the time
of training alone), the peak resident bytes of the process. The CPU does the work, with --threads threads. Needs accelerate.
"""

import argparse
import json
import resource
import tempfile
import time

import numpy as np
import torch
import transformers
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer,
                          TrainingArguments)


def read_tsv(path, tokenizer, max_length, rows=None):
    with open(path, encoding="utf-8") as file:
        pairs = [line.rstrip("\n").rsplit("\t", 1) for line in file if line.strip()][:rows]
    encoded = tokenizer([text for text, _ in pairs], truncation=True, max_length=max_length)["input_ids"]
    return [{"input_ids": ids, "labels": int(label)} for ids, (_, label) in zip(encoded, pairs)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, help="only the first so many rows of TRAIN")
    parser.add_argument("--group-by-length", action="store_true", help="batches of rows of like lengths")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.set_seed(arguments.seed)  # before the model: the head is drawn
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    train = read_tsv(arguments.train, tokenizer, arguments.max_length, arguments.rows)
    dev = read_tsv(arguments.dev, tokenizer, arguments.max_length)
    classes = 1 + max(row["labels"] for row in train)
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=classes, dtype=torch.float32)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder, seed=arguments.seed, num_train_epochs=arguments.epochs, learning_rate=arguments.lr,
                per_device_train_batch_size=arguments.batch_size, per_device_eval_batch_size=arguments.batch_size,
                weight_decay=0.01, bf16=arguments.bf16, use_cpu=True, save_strategy="no", eval_strategy="no",
                report_to="none", logging_steps=50, disable_tqdm=True, dataloader_pin_memory=False,
                train_sampling_strategy="group_by_length" if arguments.group_by_length else "random"),
            train_dataset=train,
            eval_dataset=dev,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))},
        )
        before = time.process_time()
        trained = trainer.train().metrics
        processor = time.process_time() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # before evaluation
        scored = trainer.evaluate()
    print(json.dumps({
        "accuracy": scored["eval_accuracy"],
        "eval_loss": scored["eval_loss"],
        "train_loss": trained["train_loss"],
        "train_seconds": trained["train_runtime"],
        "train_processor_seconds": processor,
        "sequences_per_second": trained["train_samples_per_second"],
        "peak_rss_bytes": peak,
        "rows": len(train),
        "steps": trainer.state.global_step,
        **{key: getattr(arguments, key) for key in ("seed", "epochs", "batch_size", "lr", "max_length", "bf16", "group_by_length", "threads")},
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }))


if __name__ == "__main__":
    main()
