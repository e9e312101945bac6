"""Writes a two-layer Qwen3 with its own tokenizer and two shards of weights; runs in the engine environment."""  # noqa: INP001

import json
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from safetensors.torch import save_file  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import PreTrainedTokenizerFast, Qwen3Config  # type: ignore[import-not-found]

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD = 512, 64, 128, 2, 4, 2, 32
CORPUS = ["hello world the quick brown fox", "spark cluster ray vllm pulumi"] * 10
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: every text has tokens."""
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=None)
    fast.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    fast.chat_template = CHAT_TEMPLATE
    return fast


def weights() -> list[dict[str, torch.Tensor]]:
    """Random weights under the names of Qwen3, as two shards."""
    torch.manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) * 0.02).to(torch.bfloat16)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    shards: list[dict[str, torch.Tensor]] = [{"model.embed_tokens.weight": random(VOCABULARY, HIDDEN)}, {}]
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shards[layer % 2] |= {
            f"{name}.input_layernorm.weight": ones(HIDDEN),
            f"{name}.post_attention_layernorm.weight": ones(HIDDEN),
            f"{name}.self_attn.q_proj.weight": random(HEADS * HEAD, HIDDEN),
            f"{name}.self_attn.k_proj.weight": random(KV_HEADS * HEAD, HIDDEN),
            f"{name}.self_attn.v_proj.weight": random(KV_HEADS * HEAD, HIDDEN),
            f"{name}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD),
            f"{name}.self_attn.q_norm.weight": ones(HEAD),
            f"{name}.self_attn.k_norm.weight": ones(HEAD),
            f"{name}.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{name}.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{name}.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        }
    shards[-1]["model.norm.weight"] = ones(HIDDEN)
    return shards


def main(folder: Path) -> None:
    """Write tokenizer, configuration, shards and their index."""
    fast = tokenizer()
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )
    config.architectures = ["Qwen3ForCausalLM"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    where: dict[str, str] = {}
    size = 0
    shards = weights()
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, name)
        size += sum(tensor.numel() * tensor.element_size() for tensor in shard.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
