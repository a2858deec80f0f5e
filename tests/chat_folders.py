"""Folders with a tokenizer and a chat template, as models have them."""

import json

from rampcli.data.tokenizer import train_bpe

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INSTRUCT = """\
{%- set ns = namespace(found=false) %}
{{- bos_token }}
{%- if tools is not none %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ message['content'] }}{% endgeneration %}
    {%- else %}
        {{- '[INST] ' + message.content + ' [/INST]' }}{% set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- if not ns.found %}{% break %}{% endif %}
"""
TEMPLATES = {"ChatML": CHATML, "Llama 3": LLAMA_3, "Mistral": INSTRUCT.rsplit("{%- if not", 1)[0]}


def make_tokenizer():
    """Returns a small byte-level BPE with the special tokens of the templates."""
    text = "the user and the assistant sort the numbers that the user writes\n" * 4
    tokenizer = train_bpe(iter([text]), 300)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_folder(folder, template=None, *, in_config=True, **config):
    """Writes the files of a tokenizer, and returns its tokenizer.json."""
    config = {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>"}} | config
    if template is not None and in_config:
        config["chat_template"] = template
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    path = folder / "tokenizer.json"
    path.write_text(make_tokenizer().to_str(), encoding="utf-8")
    return path
