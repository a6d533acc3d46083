"""Write the smallest model folder that a Dynamo mocker and frontend accept: no weights, a byte-level tokenizer
(256 byte tokens and a few special ones, no merges, so one byte is one token), a config and a chat template.

Usage: make_model.py FOLDER. Standard library only.
"""
import json
import pathlib
import sys

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet():
    """The printable character that byte-level BPE uses for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = (b for b in range(256) if b not in plain)
    return sorted([chr(b) for b in plain] + [chr(256 + n) for n, _ in enumerate(shifted)])


def byte_level(prefix_space):
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}


def added(index, text):
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": index, "content": text, **flags, "special": True}


def files():
    vocabulary = {token: index for index, token in enumerate(SPECIAL + byte_alphabet())}
    yield "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [added(index, text) for index, text in enumerate(SPECIAL)],
        "pre_tokenizer": byte_level(False), "decoder": byte_level(True),
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": [], "dropout": None, "unk_token": "<unk>",
            "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        },
    }
    yield "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(vocabulary),
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
        "initializer_range": 0.02, "max_position_embeddings": 32768, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True,
    }
    yield "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "max_length": 32768}
    yield "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768, "add_bos_token": False,
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
                         "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
