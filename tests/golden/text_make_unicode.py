#!/usr/bin/env python3
"""Writes engine/text/unicode_table.cpp and unicode_scripts.cpp: what Hugging Face `tokenizers` knows
of each character.

    python text_make_unicode.py        (needs: pip install tokenizers unicodedata2==16.0.0)

The library mixes several versions of Unicode, one for each crate it is made of, so the table is
found by asking the library about every code point. It also checks that the categories are those
of Unicode 16.0.0, character by character.
"""
import pathlib

import tokenizers
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).parents[2] / "engine/text"
CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf "
              "Co Cs").split()
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, ALL))
FLAGS = ("numeric", "punctuation", "mark", "accent", "control", "word", "frozen", "alphabetic",
         "lowercase", "uppercase")
# Every script of Unicode 16.0.0 with its short name, and older short names.
SCRIPTS = """
Adlam Adlm|Ahom|Anatolian_Hieroglyphs Hluw|Arabic Arab|Armenian Armn|Avestan Avst|Balinese Bali
Bamum Bamu|Bassa_Vah Bass|Batak Batk|Bengali Beng|Bhaiksuki Bhks|Bopomofo Bopo|Brahmi Brah
Braille Brai|Buginese Bugi|Buhid Buhd|Canadian_Aboriginal Cans|Carian Cari|Caucasian_Albanian Aghb
Chakma Cakm|Cham|Cherokee Cher|Chorasmian Chrs|Common Zyyy|Coptic Copt Qaac|Cuneiform Xsux
Cypriot Cprt|Cypro_Minoan Cpmn|Cyrillic Cyrl|Deseret Dsrt|Devanagari Deva|Dives_Akuru Diak
Dogra Dogr|Duployan Dupl|Egyptian_Hieroglyphs Egyp|Elbasan Elba|Elymaic Elym|Ethiopic Ethi
Garay Gara|Georgian Geor|Glagolitic Glag|Gothic Goth|Grantha Gran|Greek Grek|Gujarati Gujr
Gunjala_Gondi Gong|Gurmukhi Guru|Gurung_Khema Gukh|Han Hani|Hangul Hang|Hanifi_Rohingya Rohg
Hanunoo Hano|Hatran Hatr|Hebrew Hebr|Hiragana Hira|Imperial_Aramaic Armi|Inherited Zinh Qaai
Inscriptional_Pahlavi Phli|Inscriptional_Parthian Prti|Javanese Java|Kaithi Kthi|Kannada Knda
Katakana Kana|Kawi|Kayah_Li Kali|Kharoshthi Khar|Khitan_Small_Script Kits|Khmer Khmr|Khojki Khoj
Khudawadi Sind|Kirat_Rai Krai|Lao Laoo|Latin Latn|Lepcha Lepc|Limbu Limb|Linear_A Lina
Linear_B Linb|Lisu|Lycian Lyci|Lydian Lydi|Mahajani Mahj|Makasar Maka|Malayalam Mlym|Mandaic Mand
Manichaean Mani|Marchen Marc|Masaram_Gondi Gonm|Medefaidrin Medf|Meetei_Mayek Mtei
Mende_Kikakui Mend|Meroitic_Cursive Merc|Meroitic_Hieroglyphs Mero|Miao Plrd|Modi|Mongolian Mong
Mro Mroo|Multani Mult|Myanmar Mymr|Nabataean Nbat|Nag_Mundari Nagm|Nandinagari Nand
New_Tai_Lue Talu|Newa|Nko Nkoo|Nushu Nshu|Nyiakeng_Puachue_Hmong Hmnp|Ogham Ogam|Ol_Chiki Olck
Ol_Onal Onao|Old_Hungarian Hung|Old_Italic Ital|Old_North_Arabian Narb|Old_Permic Perm
Old_Persian Xpeo|Old_Sogdian Sogo|Old_South_Arabian Sarb|Old_Turkic Orkh|Old_Uyghur Ougr
Oriya Orya|Osage Osge|Osmanya Osma|Pahawh_Hmong Hmng|Palmyrene Palm|Pau_Cin_Hau Pauc
Phags_Pa Phag|Phoenician Phnx|Psalter_Pahlavi Phlp|Rejang Rjng|Runic Runr|Samaritan Samr
Saurashtra Saur|Sharada Shrd|Shavian Shaw|Siddham Sidd|SignWriting Sgnw|Sinhala Sinh|Sogdian Sogd
Sora_Sompeng Sora|Soyombo Soyo|Sundanese Sund|Sunuwar Sunu|Syloti_Nagri Sylo|Syriac Syrc
Tagalog Tglg|Tagbanwa Tagb|Tai_Le Tale|Tai_Tham Lana|Tai_Viet Tavt|Takri Takr|Tamil Taml
Tangsa Tnsa|Tangut Tang|Telugu Telu|Thaana Thaa|Thai|Tibetan Tibt|Tifinagh Tfng|Tirhuta Tirh
Todhri Todr|Toto|Tulu_Tigalari Tutg|Ugaritic Ugar|Vai Vaii|Vithkuqi Vith|Wancho Wcho
Warang_Citi Wara|Yezidi Yezi|Yi Yiii|Zanabazar_Square Zanb
"""


def those(test):
    return {c for c in ALL if test(chr(c))}


def property_of(name):
    split = pre_tokenizers.Split(Regex(r"\p{%s}+" % name), "removed", invert=True)
    return {ord(s) for piece, _ in split.pre_tokenize_str(TEXT) for s in piece}


def categories():
    known = {}
    for number, name in enumerate(CATEGORIES):
        if name not in ("Cn", "Cs"):
            known.update(dict.fromkeys(property_of(name), number))
    assert unicodedata2.unidata_version == "16.0.0"
    for c in ALL:
        assert CATEGORIES[known.get(c, 0)] == unicodedata2.category(chr(c)), hex(c)
    return known


def cjk(c):
    return any(a <= c <= b for a, b in (
        (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)))


def flags():
    digits, punctuation = pre_tokenizers.Digits(True), pre_tokenizers.Punctuation()
    words = pre_tokenizers.Whitespace()
    marks = normalizers.StripAccents()
    accents = normalizers.BertNormalizer(False, False, True, False)
    clean = normalizers.BertNormalizer(True, False, False, False)
    chinese = normalizers.BertNormalizer(False, True, False, False)
    found = {
        "numeric": those(lambda s: len(digits.pre_tokenize_str("a" + s)) == 2),
        "punctuation": those(lambda s: len(punctuation.pre_tokenize_str("a" + s + "a")) == 3),
        "mark": those(lambda s: marks.normalize_str(s) == ""),
        "accent": those(lambda s: accents.normalize_str(s) == ""),
        "control": those(lambda s: clean.normalize_str(s) == ""),
        "word": those(lambda s: not s.isspace() and len(words.pre_tokenize_str("a" + s)) == 1),
    }
    for name in ("alphabetic", "lowercase", "uppercase"):
        found[name] = property_of(name)
    spaced = those(lambda s: chinese.normalize_str(s) != s)
    wrong = spaced ^ {c for c in ALL if cjk(c)}
    assert not wrong, [hex(c) for c in sorted(wrong)[:9]]
    # Characters that newer versions decompose or reorder, and the library does not.
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    frozen = set()
    import unicodedata
    for c in ALL:
        s = chr(c)
        decomposes = any(u.normalize("NFKD", s) != s for u in (unicodedata, unicodedata2))
        reorders = any(u.combining(s) for u in (unicodedata, unicodedata2))
        newer = unicodedata2.category(s) == "Cn"
        if not (decomposes or reorders or newer):
            continue
        if nfkd.normalize_str(s) != s:
            continue
        theirs = (nfd.normalize_str("\u0345" + s) != "\u0345" + s or
                  nfd.normalize_str(s + "\u0334") != s + "\u0334")
        if not theirs and c not in (0x0345, 0x0334):
            # Overlays have the lowest class there is and are told apart by 0345 alone.
            frozen.add(c)
    found["frozen"] = frozen
    return found


def lowercase():
    lower = normalizers.Lowercase()
    pairs = [(c, lower.normalize_str(chr(c))) for c in ALL]
    pairs = [(c, s) for c, s in pairs if s != chr(c)]
    special = [(c, s) for c, s in pairs if len(s) > 1]
    assert special == [(0x130, "i\u0307")], special
    rows = []
    for c, s in pairs:
        if len(s) > 1:
            continue
        delta = ord(s) - c
        if rows and rows[-1][3] == delta:
            first, last, step, _ = rows[-1]
            if c - last == step or (first == last and c - last in (1, 2)):
                rows[-1] = (first, c, c - last, delta)
                continue
        rows.append((c, c, 1, delta))
    return rows


def scripts():
    """The loose names of each script, and ranges of code points with their scripts; 0 is Unknown."""
    names, known = ["unknown zzzz"], {}
    for row in SCRIPTS.replace("\n", "|").strip("|").split("|"):
        aliases = row.split()
        members = property_of(aliases[0])
        assert members and not members & known.keys(), row
        assert all(property_of(alias) == members for alias in aliases), row
        known.update(dict.fromkeys(members, len(names)))
        names.append(row.replace("_", "").lower())
    assert property_of("Unknown") == set(ALL) - known.keys()
    ranges = []
    for c in range(0x110000):
        script = known.get(c, 0)
        if not ranges or ranges[-1][1] != script:
            ranges.append((c, script))
    return sorted((n, i) for i, row in enumerate(names) for n in row.split()), ranges


def wrap(items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    return "\n".join(lines + [line])


def main():
    category, flag = categories(), flags()
    for name in FLAGS:
        print(name, len(flag[name]))

    def value(c):
        v = category.get(c, 0)
        for bit, name in enumerate(FLAGS):
            v |= (c in flag[name]) << (5 + bit)
        return v

    surrogate = CATEGORIES.index("Cs")
    kinds, ranges, previous = [], [], None
    for c in range(0x110000):
        v = surrogate if 0xD800 <= c < 0xE000 else value(c)
        if v == previous:
            continue
        previous = v
        if v not in kinds:
            kinds.append(v)
        ranges.append((c, kinds.index(v)))
    assert len(kinds) < 256
    rows = lowercase()
    text = f"""// Made by tests/golden/text_make_unicode.py from Hugging Face tokenizers {tokenizers.__version__}; categories:
// Unicode 16.0.0.
#include "engine/text/unicode_table.h"

// clang-format off
namespace snug {{

const uint16_t kCharKinds[{len(kinds)}] = {{
{wrap([hex(k) for k in kinds])}
}};
const int kCharKindCount = {len(kinds)};

const uint32_t kCharRanges[{len(ranges)}] = {{
{wrap([hex(c << 8 | k) for c, k in ranges])}
}};
const int kCharRangeCount = {len(ranges)};

const LowerRange kLowerRanges[{len(rows)}] = {{
{wrap(["{%#x,%#x,%d,%d}" % r for r in rows])}
}};
const int kLowerRangeCount = {len(rows)};

}}  // namespace snug
"""
    (OUT / "unicode_table.cpp").write_text(text)
    print(len(ranges), "ranges,", len(kinds), "kinds,", len(rows), "rows of lower case")
    names, ranges = scripts()
    text = f"""// Made by tests/golden/text_make_unicode.py from Hugging Face tokenizers {tokenizers.__version__}: scripts of Unicode
// 16.0.0.
#include "engine/text/unicode_table.h"

// clang-format off
namespace snug {{

const ScriptName kScriptNames[{len(names)}] = {{
{wrap(['{"%s",%d}' % n for n in names])}
}};
const int kScriptNameCount = {len(names)};

const uint32_t kScriptRanges[{len(ranges)}] = {{
{wrap([hex(c << 8 | i) for c, i in ranges])}
}};
const int kScriptRangeCount = {len(ranges)};

}}  // namespace snug
"""
    (OUT / "unicode_scripts.cpp").write_text(text)
    print(len(ranges), "ranges of scripts")


if __name__ == "__main__":
    main()
