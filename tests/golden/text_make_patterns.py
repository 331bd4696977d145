#!/usr/bin/env python3
"""Makes text_patterns.json with Hugging Face `tokenizers`: what split patterns match in texts that
tell Oniguruma and PCRE2 apart, and which patterns are none there.

    python text_make_patterns.py        (writes beside itself; needs: pip install tokenizers)
"""
import json
import pathlib

from tokenizers import Regex, pre_tokenizers

HERE = pathlib.Path(__file__).parent

WORDS = ("e\u0301a b-c \u0301x a\u00b2b \u24b6\u2460 c\u2040d\u200d _ \ud55c\uad6d\uc5b4 \u0663\u00b2 "
         "\u2170 \u00aa\u00bd\u00b9 A1")
MARKS = "a$+<=>^`|~!.-\u300c\u3001\u00d7\u00f7\u20ac#\u0301\u02c6\u203f\u00ab"
BLANKS = "a \t\x0b\x0c\r\nb\x85\u00a0c\u2028d\u3000\u180ee\u200bf\x01\x7f\u00ad"

# Scripts whose signs others use, too, and characters of Unicode 15 and 16.
SCRIPTS = ("\u65e5\u672c\u3001\u8a9e\u3002\u30b3\u30fc\u30d2\u30fc\u300c\u6771\u4eac\u300d\u306f\u3099\u3005\u30fb "
           "abc\u0301\u0345\u1dfa \u03b1\u0390\u0483 \u0434\u0487\u1c8a \u0915\u094d\u0964\u0951 \u0640\u0628\u064b\u060c "
           "\ud55c\u302e \U0002ebf0\U0001e4d0\U00010d50\U00010d70\U0001f600\ue000\u0378")
SETS = (("Han hani HAN Hiragana Katakana Latin Grek Cyrillic Arab Devanagari Hangul Garay Nag_Mundari Common Zyyy "
         "Inherited Qaai Unknown Any Assigned ASCII Alnum Alpha Blank Cntrl Digit Graph Lower Print Punct "
         "Posix_Punct Space Upper XDigit Word Alphabetic White_Space lu L_ LC l-m Letter Uppercase_Letter "
         "Nonspacing_Mark Decimal_Number Punctuation Math_Symbol Separator Control Unassigned Cn C Cs").split() + ["L u"])
POSIX = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit".split()
FOLDS = "ss \u00df\u1e9e fi \ufb01 \ufb06 St \u0345\u03b9\u0399 \u017fK aB\u00aa\u24b6"

# Patterns that mean something there, each with its texts.
CASES = [
    # Intervals, and what stands behind them.
    (r"\p{N}{1,3}+", ["1234567 12", "\u0661\u0662\u0663\u0664"]),
    (r"\p{N}{1,3}+1", ["11111", "1", "21212"]),
    (r"a{2}+", ["aaaaa", "a"]), (r"a{2}+a", ["aaaaa", "aaaa"]), (r"a{2,}+a", ["aaaaa", "aa"]),
    (r"a{2}?b", ["ab aab aaab"]), (r"a{2}??b", ["xaaab"]), (r"a{2}?+b", ["xaaaab"]),
    (r"a{1,3}?", ["aaaa"]), (r"a{1,3}?+b", ["aaab"]), (r"a{1,2}+?b", ["xaaab"]),
    (r"a{1,2}++a", ["aaaa"]), (r"a{2}{2}", ["aaaaaaa"]), (r"a{1,3}*b", ["aaaab", "b"]),
    (r"a{,2}b", ["aaab", "b"]), (r"a{,2}+b", ["aaab"]), (r"a{,}", ["aa{,}"]), (r"a{}", ["aa{}"]),
    (r"a{x}", ["aa{x}"]), (r"a{1, 2}", ["aa{1, 2}"]), (r"a{1", ["a{1"]), (r"a}{", ["a}{"]),
    (r"(?:ab|c){1,2}+ab", ["ababab", "cab", "ccc"]), (r"(a|(b)){1,2}+b", ["abab"]),
    ("\u00e9{1,2}+e", ["\u00e9\u00e9\u00e9\u00e9e"]), (r"[ab\]{]{1,2}+a", ["ab]{ba"]),
    (r"[]a]{1,2}+b", ["]a]ab"]), (r"[^]a]", ["]ab"]), (r"a\{1,2}+", ["a{1,2}}"]),
    (r"\x{61}{1,2}+\x62", ["aaab"]), (r"\x61{1,2}+b", ["aaab"]), (r"\pL{1,2}+1", ["abc1"]),
    (r"\w{1,2}+\b", ["abc abcd"]), (r"a{1,2}(?#x\)y)+b", ["aaab"]), (r"\0611{1,2}+", ["1111"]),
    (r"a++b|c*+d|e?+f", ["aab ccd ef"]),
    # What stands before an item that may be left out and is not given back.
    (r"\p{L}+(?:'s)?+\p{L}|\p{N}", ["the cat 1"]), (r"a*(?:b)?+a", ["aaa aba b"]), (r"a*(?>b?)a", ["aaa aba b"]),
    (r"\s+(?:b|c)?+\s", ["x   b  \nc"]), (r"\p{Lu}*(?:b|c)?+\p{L}", ["ABC Ab"]), (r"\R*x?.", ["\n\n\u2028 \u2028x"]),
    # What is asked for ahead, and then taken.
    (r"(?=a)e?a", ["xa ea a"]), (r"(?=a)e*a", ["xa"]), (r"(?=[a])e?a", ["xa"]), (r"(?=ab)e?ab?", ["xab a"]),
    (r"(?i:(?=a)e?a)b?", ["xA aB"]),
    # Options.
    (r"(?m:a.)b", ["a\nb"]), (r"(?-m:a.)", ["a\nab"]), (r"(?m)a.|b.", ["a\nb\nc"]), (r"a.", ["a\nab"]),
    (r"a(?i)b|c", ["aBC xCy aC ab"]), (r"x(a(?i)b|c)y|C", ["zCz xCy xaCy xaBy"]),
    (r"(?i)b|c", ["xCyB"]), (r"(?i-m:b.)c", ["Bxc B\nc"]), (r"(?x: a  b )c", ["abc"]),
    (r"(?mi:A.)", ["a\n"]),
    (r"((?x) a b )c d", ["abc d abc  d"]), (r"(?x:(?-x: a) b)", [" ab ab"]), (r"(?x)a (?-x) b", [" a b a  b"]),
("(?x: a # [b )\n b)", ["ab a"]), (r"(?x:a {1,2} )", ["aaa a {1,2}"]),
    (r"(?x: a{1, 2})", ["aaa a{1,2}"]), (r"(?x:a (?#c) +)", ["aaa"]), ("(?x)a\x0b\u2028\x85b", ["ab a\x0b\u2028\x85b"]),
    (r"(?x:[a b]+\ c)", ["a b c"]), (r"(?x:\x6 1)", ["a\x061"]), (r"(?x:(a)\1 2)", ["aa2"]),
    # One character for several is not what these ask for.
    (r"(?i:s+s)", [FOLDS]), (r"(?i)f|i|s", [FOLDS]), (r"(?i:f)x(?i:i)", ["FxI"]), (r"(?i:[a-z])", [FOLDS]), (r"(?i:'(?:[sdmt]|ll|ve|re))", ["'LL '\u017f '\ufb06"]),
    (r"(?i:[^\u00df])", [FOLDS]), (r"(?i:[\p{M}]+)", [FOLDS]), (r"(?i:[^\p{L}]+)", [FOLDS]), (r"(?i:\p{Lower}|\p{L}$)", [FOLDS]),
    (r"(?i:[^[:alpha:]\p{Han}])", [FOLDS, SCRIPTS]),
    # Codes.
    (r"\u0061\u00e9|[\u4e00-\u9fa5]", ["a\u00e9 \u4e2d"]), (r"\x{61}\o{62}|\x7A\x9", ["ab z\t"]), (r"\cA|[\101]", ["AA\x01"]),
    (r"\0\07|\cz", ["\0\x07\x1a"]), (r"[\cA\u0041]", ["A\x01"]), (r"(a|b)\1|(c)\g<1>", ["aabb ab ca"]), (r"\h+|\H", ["09afAFgG\uff11"]),
    (r"(?i:\p{Lu}+)\p{Ll}", ["aBCd"]), (r"(?i:\P{Lu})(?i)\p{^Ll}|[\p{Nd}]b", ["aBcDE1B\u24b6"]),
    (r"(?i:(?-i:[\p{Lu}])b)[\p{Ll}]", ["ABc aBc ABC"]),
    # Words, and where they end.
    (r"\b\p{L}", [WORDS]), (r".\b", [WORDS]), (r".\B", [WORDS]), (r"\B.", [WORDS]), (r"\b", [""]),
    (r"\w+", [WORDS]), (r"[\w]+", [WORDS]), (r"\W+", [WORDS]), (r"[\W]+", [WORDS]),
    (r"[^\w]+", [WORDS]), (r"[^\W]+", [WORDS]), (r"[\w-]+", [WORDS]), (r"[[:word:]]+", [WORDS]),
    (r"[[:^word:]]+", [WORDS]), (r"[^[:word:]]+", [WORDS]), (r"[[:digit:]]+", [WORDS]),
    (r"[[:punct:]]", [MARKS, WORDS]), (r"[a[:punct:]]+", [MARKS]), (r"[[:^punct:]]", [MARKS]),
    # A '-' that is itself beside a set, and where a range may begin again.
    (r"[-\w]+|[^-\w]", [MARKS, WORDS]), (r"[[:blank:]-]+|[^\h-]+", [MARKS, BLANKS]), (r"[!-+-\h]+", [MARKS, "a!-g"]),
    (r"[+--\w]+", [MARKS, "+,-.a"]), (r"[a-z--9]+", ["a-./:5"]), (r"[\u00e0-\u00e9-\h]+", ["\u00e0\u00e5-g9"]), ("[\u00e0-\u00e9-\\h]+", ["\u00e0\u00e5-g9"]),
    (r"[\w\-z]+", ["a-z!"]), (r"[\]-a]+", ["]^_`ab"]),
    # What only ends somewhere, in a list or behind options.
    (r"(?:\Za)+|(?:^$)+|(?:)+b", ["ab"]), (r"(?:(?:\b)a)+", ["aa a"]), (r"(?:a|(?i)\Z|b)+", ["ab"]), (r"(?:(?i)\b)+a", ["aba"]),
    (r"(?:\b(?i))+a|((?:\b))+b|(?>\b)+c", ["a b c ac"]), (r"(?:(?!a)b|b$)+", ["abb"]),
    # Blanks.
    (r"[[:space:]]+", [BLANKS]), (r"[[:^space:]]+", [BLANKS]), (r"[\S]+", [BLANKS]),
    (r"[\s]+", [BLANKS]), (r"\S+", [BLANKS]), (r"[[:blank:]]+", [BLANKS]), (r"[[:cntrl:]]", [BLANKS]),
    (r"[[:xdigit:][:cntrl:]]+", [BLANKS]), (r"[[:ascii:]]+", [BLANKS]),
    (r"\v+", [BLANKS]), (r"[\v]+", [BLANKS]), (r"\V", ["aV\x0b"]), (r"\Q.\E", ["a.Q.E"]), (r"\R", [BLANKS]),
    # Properties, by loose names.
    (r"[\p{Han}\p{Hiragana}\p{Katakana}]+|\p{L}+", ["\u65e5\u672c\u3001\u8a9e\u3002\u30b3\u30fc\u30d2\u30fc\u300c\u6771\u4eac\u300d\u306f"]),
    *[(form % name, [SCRIPTS, WORDS + MARKS + BLANKS]) for name in SETS for form in (r"\p{%s}+", r"[^\p{%s}]+", r"[\P{%s}]+")],
    *[(form % name, [SCRIPTS, WORDS + MARKS + BLANKS]) for name in POSIX for form in ("[[:%s:]]+", "[[:^%s:]]+")],
    (r"\p{^Han}\P{^Han}", [SCRIPTS]),
    (r"^.|.$", ["a\nb\rc\n"]), (r"[\b]", ["a\bb"]),
    # Patterns that tokenizers were trained with: cl100k as tiktoken writes it, DeepSeek's.
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
     r"|\s+(?!\S)|\s+", [WORDS, MARKS, BLANKS, "I'LL don't 12345  x\n\n y"]),
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
     r"|\s*[\r\n]|\s+(?!\S)|\s", [WORDS, MARKS, BLANKS, "I'LL don't 12345  x\n\n y"]),
    (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
     r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", [WORDS, MARKS, BLANKS]),
]

# Patterns that are none there.
NONE = [r"(?s:.)", r"(?s)a", r"(?n:a)", r"(?J:a)", r"(?U:a)", r"(?P<a>x)", r"(?|a|b)", r"(?R)", r"(?C1)a",
        r"(?^:a)", r"(*UCP)a", r"\xe9", r"[\xe9]", r"[[:foo:]]", r"{2}", r"a|{2}", r"\p{Xan}", r"\p{L&}",
        r"\p{sc=Han}", r"[]", r"(?#a", r"\p{}", r"\p{^^L}",
        r"\p{Foo}", r"\p{L", r"[[:Alpha:]]", r"[[:han:]]", r"\u61", r"\u{61}", r"\o{8}", r"(?x)( ?:a)", r"^*a", r"a$?", r"\b+", r"(?<!a){2}b", r"(?=a)?", r"(+a)", r"(?i)*",
        r"[\w-z]", r"[a-\w]", r"[[:blank:]-_]", r"[+-\h]", r"[\s-\u4e00]", r"[\p{L}-\-]", r"[\w--]", r"[--\w]", r"[]-\w]",
        r"[^\d-\n]", r"[\w-[:blank:]]", r"[a-[:digit:]]", r"[\s\d-_]", r"[a-z--\w]", "[\\\u00e9-\\w]",
        r"(?:\Z)+", r"(?:(?:\b))*", r"(?:a|\Z)+", r"(?:|$)?", r"(?:(?=a)|b){2}", r"(?:\Z|(?i)a)+", r"(?:(?:a|(?:b|^)))+", r"(?x)(?: \b (?#x) )+",
        r"\o{40000000101}", r"\x{7fffffff}", r"\x{000000041}"]


def matches(pattern, text):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def main():
    golden = {"matches": [[p, t, matches(p, t)] for p, texts in CASES for t in texts], "none": []}
    for pattern in NONE:
        try:
            Regex(pattern)
        except Exception:
            golden["none"].append(pattern)
    assert golden["none"] == NONE, set(NONE) - set(golden["none"])
    rows = [f'"{key}":[\n' + ",\n".join(json.dumps(row, ensure_ascii=True) for row in value) + "]"
            for key, value in golden.items()]
    (HERE / "text_patterns.json").write_text("{" + ",\n".join(rows) + "}\n")


if __name__ == "__main__":
    main()
