#!/usr/bin/env python3
"""chat_templates.json and chat_pieces.json: what jinja2, set up as transformers sets it up, makes of
the templates in chat_templates/ over made-up conversations, and of small templates for each part of
the language. `--check` compares with the files; `--show FAMILY NUMBER` prints one rendering.

Texts are kept as digests (64-bit FNV-1a in hex) but for every 40th conversation; errors as "!" and
the message of raise_exception, or "?" for any other error.
"""
import datetime
import json
import pathlib
import re
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 3, 5, 14, 7, 9)
VARIABLES = {
    "chatml": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    "deepseek_r1": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "llama31": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "gemma2": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "phi3": {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
    "olmo2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
}


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Fixed


def digest(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


USER = ["Hi!", "What is 2 + 2?", "  spaces around  ", "한국어로 답해 주세요.", "Ünïcödé \u00df \u0130 \U0001f600",
        "", "line one\nline two\n", "quotes \" and ' and \\ and <b>&amp;</b>", "{{ not a template }} {% raw %}",
        "tabs\tand\r\nbreaks\x0b", "<|im_end|> a token of others", "</think> odd", "\u3000全角\u3000", "a" * 70]
ASSISTANT = ["Hello.", "4", " padded ", "네, 알겠습니다.", "<think>\nLet me see.\n</think>\n\nIt is 4.", "",
             "```python\nprint('x')\n```", "\n\nleading", "trailing\n", "é\u0301 e\u0301 \U0001f468\u200d\U0001f469",
             "<think></think>ok", "one\n\ntwo\n\nthree"]
SYSTEM = ["You are a pirate.", " Be brief. ", "Du bist höflich.\nImmer.", "", "/no_think Answer.",
          "x /system_override y"]
TOOLS = [
    [{"type": "function", "function": {"name": "get_weather", "description": "The weather <now> & later",
      "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": " A city "},
      "days": {"type": ["integer", "null"], "description": "How many"}}, "required": ["city"]}}}],
    [{"type": "function", "function": {"name": "add", "description": "Adds é", "parameters": {"type": "object",
      "properties": {"a": {"type": "number", "description": "x"}, "b": {"type": "boolean", "description": "y"},
      "m": {"type": "object", "description": "z", "additionalProperties": {"type": "string"}}}},
      "return": {"type": "number", "description": "sum"}}},
     {"type": "function", "function": {"name": "none", "description": "", "parameters": {"type": "object", "properties": {}}}}],
]


def conversations():
    """Deterministic; number k is of one of a few kinds."""
    out = []
    state = 12345

    def pick(items):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return items[(state >> 33) % len(items)]

    for k in range(220):
        kind = k % 11
        messages = []
        row = {"messages": messages}
        if pick([0, 1]) or kind == 1:
            messages.append({"role": "system", "content": pick(SYSTEM)})
        for _ in range(pick([1, 1, 2, 3])):
            messages.append({"role": "user", "content": pick(USER)})
            messages.append({"role": "assistant", "content": pick(ASSISTANT)})
        if kind == 2:  # ends with a question
            messages.append({"role": "user", "content": pick(USER)})
        elif kind == 3:  # roles that do not alternate
            messages.insert(pick([0, 1, 2]), {"role": pick(["user", "assistant", "system"]), "content": pick(USER)})
        elif kind == 4:  # tool calls and results
            row["tools"] = pick(TOOLS)
            arguments = pick([{"city": "Köln", "days": 2}, {"a": 1.5, "b": True}, "{\"city\": \"Rome\"}", {"x": None, "y": [1, {"z": "q\n"}]}, {}])
            calls = [{"id": pick(["abcdefgh1", "short"]), "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]
            if pick([0, 0, 1]):
                calls.append({"id": "abcdefgh2", "type": "function", "function": {"name": "add", "arguments": {"a": 1e16, "b": -0.00001}}})
            messages.append({"role": "user", "content": pick(USER)})
            messages.append({"role": "assistant", "content": pick([None, "", "Let me look."]), "tool_calls": calls})
            for c in calls:
                messages.append({"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"], "content": pick(["12°C", "{\"t\": 12}", "a \"b\""])})
            messages.append({"role": "assistant", "content": pick(ASSISTANT)})
        elif kind == 5:  # reasoning apart
            messages[-1][pick(["reasoning_content", "thinking", "reasoning"])] = pick(["\nHm.\n", "so", ""])
        elif kind == 6:  # no content, or parts
            messages[-1]["content"] = pick([None, [{"type": "text", "text": "part "}, {"type": "text", "text": " two"}]])
        elif kind == 7:  # an unknown role or more keys
            messages.append({"role": pick(["function", "developer", "ipython"]), "content": "?", "weight": 1, "more": [1, 2.5, None]})
        elif kind == 8:
            row["chat_template_kwargs"] = pick([{"enable_thinking": False}, {"date_string": "1 Jan 2020"}, {"tools_in_user_message": False}, {"builtin_tools": ["code_interpreter", "search"]}])
            if pick([0, 1]):
                row["tools"] = pick(TOOLS)
        elif kind == 9:  # assistant twice, or the user last
            messages.append({"role": "assistant", "content": pick(ASSISTANT)})
        elif kind == 10:
            messages[0]["content"] = pick(USER) * 3
        out.append(row)
    return out


def rendered(template, row, variables, prompt):
    """The text and the generated spans, or an error."""
    messages = chat_template_utils._normalize_chat_messages(row["messages"])
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=row.get("tools"), chat_template=template, add_generation_prompt=prompt,
            return_assistant_tokens_mask=re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None,
            **{**variables, **row.get("chat_template_kwargs", {})})
        joined = []  # blocks that follow each other are one span
        for begin, end in spans[0] if spans else []:
            if joined and joined[-1][1] == begin:
                joined[-1][1] = end
            elif end > begin:
                joined.append([begin, end])
        return texts[0], joined
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return "!" + str(e), []
        return "?", []
    except Exception:  # noqa: BLE001 whatever Python raises in a template
        return "?", []


def family_variables(name):
    return VARIABLES.get(name, {"bos_token": "<s>", "eos_token": "</s>"})


def families():
    return {p.stem: p.read_text() for p in sorted((HERE / "chat_templates").glob("*.jinja"))}


def make_templates():
    rows = conversations()
    out = {"versions": {"jinja2": jinja2.__version__, "transformers": transformers.__version__},
           "now": int(NOW.timestamp() - datetime.datetime(1970, 1, 1).timestamp()), "conversations": rows, "families": {}}
    for name, template in families().items():
        variables = family_variables(name)
        digests, whole, errors = [], {}, 0
        for k, row in enumerate(rows):
            plain, spans = rendered(template, row, variables, False)
            prompt, _ = rendered(template, row, variables, True)
            # Characters, as Python counts them, which the test counts too.
            both = plain + "\0" + prompt + "\0" + json.dumps(spans)
            digests.append(digest(both))
            errors += plain[:1] in "!?" and plain != ""
            if k % 40 == 0:
                whole[str(k)] = both
        out["families"][name] = {"variables": variables, "digests": "".join(digests), "errors": errors, "whole": whole}
    return out


PIECES = (HERE / "chat_pieces.txt")


def make_pieces():
    """Each line of chat_pieces.txt that is no comment: a template, with line breaks as these two signs."""
    out = []
    context = {"s": "Hello, Wörld ß ǆ", "n": 7, "f": 2.5, "l": [3, 1, 2], "e": [], "d": {"b": 1, "a": [1, "x", None], "C": {"k": "v"}},
               "t": True, "z": None, "u": [{"r": "user", "c": "Bb", "n": 2}, {"r": "tool", "c": "aa", "n": 1}, {"r": "user", "c": "Cc"}],
               "nested": [{"v": 1, "k": [{"v": 2, "k": []}, {"v": 3, "k": [{"v": 4, "k": []}]}]}], "w": "  a b\tc \n d  ", "q": "it's \"q\" \\ \n\t\x7f\u200b\u00e9"}
    for line in PIECES.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        template = line.replace("⏎", "\n").replace("␍", "\r")
        text, _ = rendered(template, {"messages": [{"role": "user", "content": "c"}], "chat_template_kwargs": context}, {"bos_token": "<s>"}, False)
        out.append([template, text])
    return {"versions": {"jinja2": jinja2.__version__, "transformers": transformers.__version__}, "context": context, "pieces": out}


def main():
    args = sys.argv[1:]
    if args[:1] == ["--show"]:
        template = families()[args[1]]
        row = conversations()[int(args[2])]
        print(json.dumps(row, ensure_ascii=False))
        for prompt in (False, True):
            print(repr(rendered(template, row, family_variables(args[1]), prompt)))
        return
    for name, made in (("chat_templates.json", make_templates()), ("chat_pieces.json", make_pieces())):
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n"
        path = HERE / name
        if args == ["--check"]:
            old = json.loads(path.read_text())
            old.pop("versions"), made.pop("versions")
            if old != json.loads(json.dumps(made)):
                raise SystemExit(f"{name} differs")
        else:
            path.write_text(text)
            print(name, len(text.encode()))


if __name__ == "__main__":
    main()
