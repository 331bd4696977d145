#!/usr/bin/env python3
"""chat_grid.json: what jinja2, set up as transformers sets it up, makes of every filter, test, method, operator and
subscript that Snug reads, of a value of every kind: made_of[k] has what each of `values` gives in place of @ in
uses[k], "?" for an error. `--check` compares with the file.
"""
import json
import pathlib
import sys

import jinja2
import make_chat_golden as golden
import transformers

HERE = pathlib.Path(__file__).parent
VALUES = ["7", "(-3)", "2.5", "0.0", "true", "none", "missing", "'aB c'", "''", "' x,y\\nZ9 '", "'Äß1'", "[3, 1, 2]", "[]",
          "['b', 'A', 'a']", "(1, 'x')", "{'b': 1, 'a': [2]}", "{}", "u", "range(3)", "'42'", "[[1, 2], [0]]", "'<a & \"b\">'"]

FILTERS = ["abs", "attr('x')", "capitalize", "count", "d", "d('y')", "default('y')", "default('y', true)", "default(boolean=true)",
           "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "e", "escape", "first", "float",
           "float(9.5)", "format(1)", "indent", "indent(2)", "indent(width=2, first=true)", "indent('> ', blank=true)", "int",
           "int(9)", "int(base=16)", "items | list", "join", "join('-')", "join(', ', attribute='r')", "last", "length", "list",
           "lower", "map('upper') | list", "map(attribute='c') | list", "map(attribute='n', default=5) | list", "max", "min",
           "max(case_sensitive=true)", "min(attribute='c')", "reject('odd') | list", "reject | list", "rejectattr('n') | list",
           "rejectattr('r', 'eq', 'user') | list", "replace('a', 'zz')", "replace('', '-', 2)", "reverse", "reverse | list",
           "round", "round(1)", "round(-1)", "round(1, 'floor')", "round(method='ceil')", "safe", "select('number') | list",
           "select | list", "selectattr('n') | list", "selectattr('n', '>', 1) | list", "selectattr('c', 'in', ['aa']) | list",
           "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='c')", "string", "sum", "sum(start=3)",
           "sum(attribute='n')", "title", "tojson", "tojson(indent=1)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)",
           "tojson(ensure_ascii=true)", "trim", "trim('a ')", "truncate(3)", "truncate(3, leeway=0)", "truncate(4, true, '!', 0)",
           "unique | list", "unique(true) | list", "unique(attribute='r') | list", "upper", "wordcount", "nothing",
           "tojson(separators=none)", "tojson(indent=none)", "tojson(separators=(',',))", "tojson(separators=[',', ':', ';'])",
           "tojson(indent=0)", "tojson(2)", "replace('a')", "replace('a', 'b', none)", "round('x')", "round(1, 'up')", "join(1)",
           "join(none)", "default()", "truncate(killwords=true)", "truncate(3, end='')", "indent(first=true)", "indent(none)",
           "sort(attribute='r,c')", "sort(attribute='zz')", "dictsort(by='x')", "dictsort(by='key')", "map | list",
           "map('nothing') | list", "map(attribute='k', default=none) | list", "map('replace', 'a', 'b') | list",
           "map('default', 3) | list", "select('nothing') | list", "select('gt', 1) | list", "select('in', [1, 'a']) | list",
           "selectattr | list", "reject('none') | list", "rejectattr('zz') | list", "sum('n')", "sum('n', 3)", "wordcount(1)",
           "upper(1)", "list(1)", "first(1)", "attr", "attr('c')", "int(none)", "float(none)", "float('x')", "trim(none)",
           "trim('')", "min(attribute='n')", "max(attribute='r')", "unique(attribute='c') | list", "unique(case_sensitive=true) | list",
           "reverse(1)", "string(1)", "items", "abs(1)", "length(1)", "d(none)", "format", "format('a', 'b')", "title(1)", "e(1)"]
TESTS = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "iterable",
         "sequence", "callable", "even", "odd", "lower", "upper", "divisibleby 3", "divisibleby(2)", "eq 7", "ne 7", "lt 3", "le 7",
         "gt 2", "ge 7", "equalto 'aB c'", "greaterthan 2.5", "lessthan 'b'", "in [7, 'aB c', none]", "in 'x aB c'", "sameas none",
         "sameas true", "not none", "filter", "test", "escaped"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip('c')",
           "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "splitlines()", "splitlines(true)", "startswith('a')",
           "endswith(('c', ' '))", "find('B')", "rfind('c', 1)", "index('B')", "rindex('Q')", "count('a')", "replace('a', 'q')",
           "join(['a', 'b'])", "center(7)", "center(7, '*')", "ljust(7, '.')", "rjust(7)", "zfill(5)", "partition(' ')",
           "rpartition(',')", "removeprefix('a')", "removesuffix('c')", "expandtabs(2)", "isalnum()", "isalpha()", "isascii()",
           "isdecimal()", "isdigit()", "isidentifier()", "islower()", "isnumeric()", "isprintable()", "isspace()", "istitle()",
           "isupper()", "format(1, 2)", "encode()", "keys() | list", "values() | list", "items() | list", "get('a')", "get('q', 4)",
           "copy()", "append(1)", "pop()", "pop(0)", "b", "a", "nothing", "index(1)", "extend([1])", "split(none)",
           "split(none, 1)", "split('')", "strip(none)", "strip('')", "lstrip(1)", "startswith()", "startswith('a', 1)", "startswith(1)",
           "endswith('c', -1)", "endswith('')", "find('a', 1, 2)", "find()", "find('', 1)", "count('a', 1)", "count('')",
           "replace('a')", "replace('a', 'b', 0)", "replace('', '.')", "join(1)", "join('xy')", "center()", "ljust(2, 'ab')", "zfill(-1)",
           "splitlines(keepends=true)", "get()", "get('a', default=1)", "pop('a')", "pop(-1)", "pop(9)", "update({'z': 1})",
           "setdefault('z', 1)", "insert(0, 1)", "remove(1)", "clear()", "items(1)", "keys()", "values()", "items()", "expandtabs()",
           "title(1)", "upper", "partition('')", "rpartition()", "isupper(1)", "rfind('a', -2)", "rindex('c', 0, 2)", "rsplit(none, 1)",
           "rsplit(',', maxsplit=1)", "count(1)", "index('x')", "__class__", "x.y", "a.b"]
OPERATORS = ["@ + 1", "1 + @", "@ + 'x'", "@ + [1]", "@ - 2", "@ * 2", "2 * @", "@ / 2", "7 / @", "@ // 2", "@ % 2", "7 % @", "@ ** 2",
             "-@", "+@", "@ ~ 1", "@ == 7", "@ == 'aB c'", "@ != []", "@ < 3", "@ <= 7", "@ > 2.5", "@ >= 'a'", "@ and 1", "@ or 1",
             "not @", "1 in @", "'a' in @", "'a' not in @", "@ in 'aB c'", "@ if @ else 'no'", "[@, @]", "{'k': @}", "(@,)",
             "@ == true", "@ == 0", "1 < @ < 5"]
SUBSCRIPTS = ["@[0]", "@[-1]", "@[9]", "@['a']", "@['zz']", "@[1:]", "@[:1]", "@[::-1]", "@[-2:]", "@[0:9:2]", "@[none:2]",
              "@[true]", "@[2:0:-1]"]
BLOCKS = ["{% for x in @ %}{{ loop.index }}{{ x }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}",
          "{% for x in @ %}{{ loop.revindex0 }}{{ loop.first }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
          "{% for x in @ if x %}{{ x }}{% endfor %}", "{% for a, b in @ %}{{ a }}={{ b }} {% endfor %}",
          "{% if @ %}yes{% elif @ is none %}none{% else %}no{% endif %}", "{% set x = @ %}{{ x }}{{ x is string }}",
          "{% set ns = namespace(v=@) %}{% set ns.v = [ns.v] %}{{ ns.v }}", "{% set a, b = @ %}{{ b }}{{ a }}",
          "{% macro m(v, w=1) %}{{ v }}{{ w }}{% endmacro %}{{ m(@) }}{{ m(w=@, v=0) }}",
          "{% for x in @ %}{{ loop.cycle('p', 'q') }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
          "{% filter upper %}{{ @ }}b{% endfilter %}", "{{ raise_exception(@) }}", "{% for x in @ recursive %}{{ x }}{% endfor %}",
          "{{ @ }}"]


def uses():
    return ([f"{{{{ @ | {f} }}}}" for f in FILTERS] + [f"{{{{ @ is {t} }}}}" for t in TESTS] +
            [f"{{{{ (@).{m} }}}}" for m in METHODS] + [f"{{{{ {o} }}}}" for o in OPERATORS] +
            [f"{{{{ {s} }}}}" for s in SUBSCRIPTS] + BLOCKS)


def main():
    context = golden.make_pieces()["context"]
    row = {"messages": [{"role": "user", "content": "c"}], "chat_template_kwargs": context}
    made = []
    for use in uses():
        made.append([golden.rendered(use.replace("@", v), row, {"bos_token": "<s>"}, False)[0] for v in VALUES])
    out = {"versions": {"jinja2": jinja2.__version__, "transformers": transformers.__version__}, "context": context,
           "values": VALUES, "uses": uses(), "made_of": made}
    path = HERE / "chat_grid.json"
    if sys.argv[1:] == ["--check"]:
        old = json.loads(path.read_text())
        if {k: old[k] for k in ("values", "uses", "made_of")} != json.loads(json.dumps({k: out[k] for k in ("values", "uses", "made_of")})):
            sys.exit("chat_grid.json differs")
        return
    path.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
