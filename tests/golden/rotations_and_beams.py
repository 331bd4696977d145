"""Numbers of transformers that stand in tests as they are, printed.

The scale of sine and cosine of rotations (test_decoder_files.cpp), and a beam search where two stop tokens
are the likeliest of every beam (test_generation_golden.cpp). Made with torch and transformers 5.24.0:
    python tests/golden/rotations_and_beams.py
"""
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LogitsProcessor, LogitsProcessorList
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512}
ROTATIONS = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
     "original_max_position_embeddings": 512},
    YARN | {"beta_fast": 24.0, "beta_slow": 2.0, "truncate": False},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.707},
    YARN | {"attention_factor": 1.25},
    {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512,
     "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]},
]
for rotation in ROTATIONS:
    config = LlamaConfig(hidden_size=8, num_attention_heads=2, max_position_embeddings=2048,
                         rope_parameters=rotation | {"rope_theta": 10000.0})
    print(rotation, repr(ROPE_INIT_FUNCTIONS[rotation["rope_type"]](config, "cpu")[1]))


class Always(LogitsProcessor):
    """The same log probabilities at every step."""

    def __call__(self, ids, scores):
        return torch.log(torch.tensor([0.46, 0.44, 0.06, 0.04])).expand_as(scores).clone()


model = GPT2LMHeadModel(GPT2Config(vocab_size=4, n_positions=64, n_embd=8, n_layer=1, n_head=1)).eval()
out = model.generate(torch.tensor([[2]]), attention_mask=torch.ones(1, 1, dtype=torch.long), do_sample=False,
                     num_beams=2, num_return_sequences=2, eos_token_id=[0, 1], pad_token_id=3,
                     early_stopping="never", length_penalty=3.0, max_new_tokens=3,
                     logits_processor=LogitsProcessorList([Always()]), output_scores=True,
                     return_dict_in_generate=True)
print(out.sequences.tolist(), out.sequences_scores.tolist())


class Late(LogitsProcessor):
    """Token 0, and the stop token 1 from the third step on."""

    def __call__(self, ids, scores):
        p = [0.9, 0.08, 0.01, 0.01] if ids.shape[1] < 3 else [0.08, 0.9, 0.01, 0.01]
        return torch.log(torch.tensor(p)).expand_as(scores).clone()


out = model.generate(torch.tensor([[2]]), attention_mask=torch.ones(1, 1, dtype=torch.long), do_sample=False,
                     num_beams=2, num_return_sequences=2, eos_token_id=[1], pad_token_id=3,
                     early_stopping="never", length_penalty=-1.0, max_new_tokens=40,
                     logits_processor=LogitsProcessorList([Late()]), output_scores=True,
                     return_dict_in_generate=True)
print(out.sequences.tolist(), out.sequences_scores.tolist())
