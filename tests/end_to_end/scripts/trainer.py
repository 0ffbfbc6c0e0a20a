"""The Hugging Face Trainer on a tiny GPT-2 with random weights. The argument is the number of steps."""

import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Windows(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Slow(Trainer):
    def compute_loss(self, *arguments, **named):
        time.sleep(0.008)
        return super().compute_loss(*arguments, **named)


set_seed(0)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=8,
    max_steps=int(sys.argv[1]),
    optim="adamw_torch",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    save_steps=100_000,
)
model = GPT2LMHeadModel(config)
# a checkpoint before the first step: one between steps would make their times uneven
model.save_pretrained("trained/start")
result = Slow(model=model, args=arguments, train_dataset=Windows()).train()
print(f"loss {result.training_loss:.6f}")
