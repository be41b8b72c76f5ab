"""Makes the tokenizer cases: strings, and what `tokenizers` says they are.

    python3 tests/text/make_tokenizer_cases.py --smollm2 FILE.gguf --gemma3 FILE.gguf

Needs tokenizers, transformers and gguf; the C++ test (src/text/tokenizer_cases_test.cc) needs none of them. Written here:

  fragments.txt   bits of text, one per line with C escapes. String i of a test is a few of them, picked by a generator
                  seeded with i that both sides have (class Random below is base/random.h).
  byte_level.json, sentencepiece.json   small vocabularies in tokenizer.json form
  variants.json   normalizers and pre-tokenizers to try on them
  expected.bin    sections of (name, count, 32-bit hashes of the ids of string 0, 1, ...)

Each tokenizer is asked twice: control tokens read ("parse"), and their spelling taken as text ("text",
encode_special_tokens). Decisions where there is no single answer:

- SmolLM2: transformers' reading of the GGUF file drops the one-by-one splitting of digits that `pre = smollm` and the
  model's own tokenizer.json ask for. The expectation has it.
- Gemma 3: as transformers reads the GGUF file, so a long run of spaces is merged by rank (sentencepiece itself and
  llama.cpp would take 31 spaces at a time from the left: the same up to 31).
- Bytes that are not UTF-8: no oracle takes them. Expected: for cutting words they are like a control character; then
  their bytes are merged as bytes (byte level) or are byte tokens (sentencepiece).
"""
import argparse
import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).parent
STRINGS = 24000  # for each model
VARIANT_STRINGS = 6000  # for each variant
MASK = (1 << 64) - 1
STRANGE = "\ue000"  # stands for a byte that is not UTF-8 while an oracle cuts words


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Random:
    def __init__(self, seed):
        self.state = mix64(seed)

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return mix64(self.state) % n


def hash_ids(ids):
    h = len(ids)
    for i in ids:
        h = mix64(h ^ i)
    return h & 0xFFFFFFFF


def compose(fragments, i):
    r = Random(i)
    out = b""
    for _ in range(1 + r.below(6)):
        if r.below(4) == 0:
            out += b" "
        out += fragments[r.below(len(fragments))]
    return out


# --- fragments -------------------------------------------------------------------------------------------------------

ENGLISH = """The river had risen in the night, and by morning the lower field was a lake.
She counted the steps: one, two, three; then she stopped, because the fourth was missing.
"Don't," he said, "you'll wake the dogs." They'd been asleep since Tuesday's storm.
I'm sure we've met before; you're Anna's brother, aren't you? It'd be a shame if not.
WE'LL SEE. THEY'RE LATE. I'D RATHER NOT. He'S ODD, she'Re odder. ’tis the reader’s ’70s
A cache is a promise that the past will be asked for again.
Prices rose 3.7% to $1,234,567.89 between 1999-12-31 and 2024-02-29 (see p. 1042).
e.g. i.e. etc. a.m. U.S.A. Ph.D. Mr. O'Neill-Smythe's co-operation re-entered the pre-war era
https://example.org/a/b?c=d&e=%20f#g  mail: someone+tag@example.com
antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
CamelCaseIdentifier snake_case_name SCREAMING_SNAKE kebab-case-name XMLHttpRequest iOS12
lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor""".split("\n")

CODE = [
    "def f(x: int) -> int:\n    return x ** 2 + 1  # square\n", "for (int i = 0; i < n; ++i) { sum += a[i]; }\n",
    "#include <vector>\n\nint main() {\n\treturn 0;\n}\n", "SELECT name, COUNT(*) FROM users WHERE id >= 10 GROUP BY 1;",
    "<div class=\"row\"><table><tr><td>x</td></tr></table></div>", "const f = async (a, b) => { await g(a?.b ?? c); };",
    "\\frac{\\partial u}{\\partial t} = \\nabla^2 u", "git commit -m 'fix: off by one' && git push\r\n", "0xDEADBEEF 0b1010 1e-9 1_000_000 .5f",
    "if [ -z \"$1\" ]; then\n  echo \"usage: $0 file\" >&2; exit 1\nfi", "{\"a\": [1, 2.5, -3e10, null, true], \"b\": \"\\u00e9\\n\"}",
    "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }", "```python\nprint('hi')\n```", "| a | b |\n|---|---|\n| 1 | 2 |",
    "!=== <=> -> => :: ;; ... ,,, !!! ??? ### $$$ %%% ^^^ &&& *** ((( ))) ___ +++ --- ~~~ ||| `` '' \"\"",
]

WORLD = """日本語の文章です。東京は日本の首都で、人口は約１４００万人。
中文分词是一个有趣的问题，因为词之间没有空格。１２３４五六七
한국어 문장입니다. 대한민국의 수도는 서울이다. ᄒ
한ᄀ각 ㄱㄴㄷ
Привет, мир! Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΆΈΉ ϊΐ ὠᾳ
שלום עולם! זה משפט בעברית עם נִקּוּד.
مرحبا بالعالم. هذه جملة بالعربية ١٢٣٤ ـــ لُغَةٌ
नमस्ते दुनिया। यह हिन्दी में एक वाक्य है। १२३ क्षत्रिय
สวัสดีชาวโลก นี่คือประโยคภาษาไทย ๑๒๓
Tiếng Việt có nhiều dấu thanh: ắ ằ ẳ ẵ ặ. Được rồi!
Größe, Straße, Ärger, Übermut; ﬁ ﬂ ﬀ ſ ß ẞ
Ça va, garçon? L’été à Orléans, œuvre, naïve, où
İstanbul'da ılık ğüşöç; DŽ Dž dž ǅ Ⅷ ⅷ ½ ¾ ² ³ ① ⑳ ٣ ७
ქართული ენა Հայերեն বাংলা ગુજરાતી தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ພາສາລາວ བོད་ཡིག မြန်မာ ភាសាខ្មែរ አማርኛ
𝕳𝖊𝖑𝖑𝖔 𝟘𝟙𝟚 𝒜ℬ𝒞 𐐀𐐨 𒀀𒁀 𓀀 🄰 ＡＢＣ ａｂｃ １２３""".split("\n")

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "1️⃣", "❤️‍🔥", "👨🏿‍🚀", "🤷‍♀️", "☕", "™", "🫠", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "✈️", "⌚️"]
COMBINING = ["e\u0301", "a\u0308\u0301", "n\u0303o", "Z\u0351\u036b\u0343a\u0321l\u0337g\u0338o", "\u0301", " \u0301x", "क\u094d\u0937", "ก\u0e33\u0e49",
             "A\u030a \u212b \u2126 \u212a", "q\u0307\u0323", "q\u0323\u0307", "\u1100\u1161\u11a8", "\u0041\u0328\u0304", "\ufb2a\u0344\u0958", "o\u031b\u0323"]
SPACES = [" " * n for n in (1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 33, 40, 63, 64, 100)] + [
    "\n", "\n\n", "\n\n\n", "\n" * 31, "\n" * 32, "\n" * 40, "\t", "\t\t", "\t" * 9, "\t" * 33, "\r", "\r\n", "\r\n\r\n", " \n", "\n ", " \n \n", "  \n    ",
    "\u00a0", "\u3000", "\u2003 \u2009", "\u0085", "\u2028", "\u2029", "\u180e", " \u180e ", "\u200b", "\u200d", "\ufeff", "\x0b", "\x0c", "\x1c\x1d\x1e\x1f", "\u1680",
    "\u2581", "\u2581\u2581", " \u2581 ", "\u2581the", "\t \t", "   \t", "\n\t\n", "x ", " x", "  x", "   x", "x  y", "> </", "> <", ">  </b"]
CONTROL = ["\x00", "\x01", "\x04", "\x06", "\x07", "\x08", "\x13\x14\x16", "\x1b[0m", "\x7f", "\u0080", "\u009f", "\u00ad", "\u061c", "\u202e", "\u2066", "\uffff", "\ufffd", "\U0010ffff"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>",
           "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<jupyter_script>", "<empty_output>", "<reponame>",
           "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<unused0>", "<unused99>", "<unused6241>", "<unused6242>",
           "<start_of_image>", "<end_of_image>", "[multimodal]", "<table>", "</table>", "<h1>", "</span>", "<0x0A>", "<0x41>", "<0xFF>", "<s>", "</s>",
           "<|im_", "im_end|>", "<|im_start|", "<start_of_turn", "start_of_turn>", "<unused", "<<eos>>", "< eos>", "<EOS>", "<|IM_END|>", "<|im_end|>\n",
           "<|im_start|>user\n", "<start_of_turn>model\n", "<|eot_id|>", "[INST]", "<end_of_turn>\n<start_of_turn>", "<|im_start|><|im_end|>", "<|im_end |>", "<think>"]
STRANGE_BYTES = [b"\xff", b"\xfe\xff", b"\x80", b"\xbf\xbf", b"\xc3", b"\xc0\xaf", b"\xe2\x82", b"\xe2\x28\xa1", b"\xed\xa0\x80\xed\xb0\x80", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"caf\xe9 ", b"\xa0 x"]


def random_text(rng):
    """Any characters that were assigned in Unicode 14, the version PCRE2 10.42 knows."""
    blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x5FF), (0x600, 0x10FF), (0x1100, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0x2FFF), (0x3000, 0x33FF),
              (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x10000, 0x10FFF), (0x11000, 0x1FFFF), (0x1F300, 0x1FAFF), (0x20000, 0x323AF), (0xE0000, 0xE01EF)]
    mixed = rng.random() < 0.4
    block = rng.choice(blocks)
    out = ""
    while len(out) < rng.choice((1, 2, 3, 5, 8, 13)):
        c = chr(rng.randint(*(rng.choice(blocks) if mixed else block)))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            out += c
        if rng.random() < 0.1:
            out += rng.choice(" \n'.0aA")
    return out


def make_fragments():
    rng = random.Random(20240229)
    texts = list(ENGLISH + CODE + WORLD + EMOJI + COMBINING + SPACES + CONTROL + SPECIAL)
    for line in ENGLISH + CODE + WORLD:
        for _ in range(6):
            a = rng.randrange(len(line))
            texts.append(line[a:a + rng.choice((1, 2, 3, 5, 8, 13, 21))])
    texts += [w for line in ENGLISH + WORLD for w in rng.sample(line.split(), min(6, len(line.split())))]
    texts += SPACES * 2 + SPECIAL * 3 + EMOJI * 2 + COMBINING * 2
    texts += [str(rng.randrange(10 ** rng.randrange(1, 12))) for _ in range(40)]
    texts += [rng.choice("abcdefghijklmnop") * rng.choice((2, 3, 4, 7, 30, 60, 200)) for _ in range(30)]
    texts += ["".join(rng.choice("ab") for _ in range(rng.choice((5, 20, 50)))) for _ in range(20)]
    texts += ["".join(rng.choice("aeiourstlnAEST'- ") for _ in range(rng.choice((4, 9, 40)))) for _ in range(80)]
    texts += [random_text(rng) for _ in range(900)]
    assert not any(STRANGE in t for t in texts)
    return [t.encode() for t in texts] + STRANGE_BYTES * 2


def escape(b):
    s = b.decode("utf-8", "surrogateescape")
    out = ""
    for c in s:
        if c == "\\":
            out += "\\\\"
        elif "\udc80" <= c <= "\udcff":
            out += f"\\x{ord(c) - 0xDC00:02x}"
        elif c != " " and (not c.isprintable() or unicodedata.category(c)[0] in "ZCM"):
            out += "".join(f"\\x{x:02x}" for x in c.encode())
        else:
            out += c
    return out


# --- oracles ---------------------------------------------------------------------------------------------------------

def byte_spelling():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {b: chr(b) for b in keep}
    for n, b in enumerate(b for b in range(256) if b not in table):
        table[b] = chr(256 + n)
    return table


SPELL = byte_spelling()


def is_strange(s):
    return any("\udc80" <= c <= "\udcff" for c in s)


class Oracle:
    """A tokenizers.Tokenizer that also has an answer for bytes that are not UTF-8."""

    def __init__(self, tokenizer, byte_level):
        self.t, self.byte_level = tokenizer, byte_level
        added = [a for _, a in sorted(tokenizer.get_added_tokens_decoder().items())]
        self.added = sorted(((a.content, a.special) for a in added), key=lambda a: -len(a[0]))

    def encode(self, b, parse):
        self.t.encode_special_tokens = not parse
        s = b.decode("utf-8", "surrogateescape")
        if not is_strange(s):
            return self.t.encode(s, add_special_tokens=False).ids
        return self.strange_byte_level(s, parse) if self.byte_level else self.strange_sentencepiece(s)

    def strange_byte_level(self, s, parse):
        ids, text, at = [], "", 0
        while at <= len(s):
            hit = next((c for c, special in self.added if s.startswith(c, at) and (parse or not special)), None) if at < len(s) else ""
            if hit is None:
                text += s[at]
                at += 1
                continue
            ids += self.words(text)
            text = ""
            if hit:
                ids.append(self.t.token_to_id(hit))
            at += len(hit) or 1
        return ids

    def words(self, text):
        lost = iter([c for c in text if "\udc80" <= c <= "\udcff"])
        shown = "".join(STRANGE if "\udc80" <= c <= "\udcff" else c for c in text)
        if self.t.normalizer:
            shown = self.t.normalizer.normalize_str(shown)
        ids = []
        for _, (a, e) in self.t.pre_tokenizer.pre_tokenize_str(shown) if shown else ():
            word = b"".join((next(lost) if c == STRANGE else c).encode("utf-8", "surrogateescape") for c in shown[a:e])
            ids += [token.id for token in self.t.model.tokenize("".join(SPELL[x] for x in word))]
        return ids

    def strange_sentencepiece(self, s):
        if self.t.pre_tokenizer and "Metaspace" in str(self.t.pre_tokenizer) or "Prepend" in str(self.t.normalizer):
            return None  # each part between such bytes would get a space of its own
        ids, text = [], ""
        for c in s + "\udc00":
            if "\udc00" <= c <= "\udcff":
                ids += self.t.encode(text, add_special_tokens=False).ids if text else []
                ids += [self.t.token_to_id(f"<0x{ord(c) - 0xDC00:02X}>")] if c != "\udc00" else []
                text = ""
            else:
                text += c
        return ids


def read_gguf(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in fields else None
    return get("tokens"), get("token_type"), get("merges")


def smollm2(path):
    tokens, types, merges = read_gguf(path)
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x, kind in zip(tokens, types) if kind == 3])
    return Oracle(t, True), tokens, types


def gemma3(path):
    from transformers import AutoTokenizer

    path = pathlib.Path(path)
    tokens, types, _ = read_gguf(path)
    return Oracle(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer, False), tokens, types


# --- small vocabularies in tokenizer.json form -----------------------------------------------------------------------

def small_byte_level(oracle):
    """SmolLM2's bytes, first 2,500 merges and their results."""
    full = json.loads(oracle.t.to_str())["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in full["merges"]][:2500]
    words = list(SPELL.values()) + sorted({a + b for a, b in merges} | {a for a, _ in merges} | {b for _, b in merges} - set(SPELL.values()))
    vocab = {w: i for i, w in enumerate(dict.fromkeys(words + ["Ġunreachable", "hello", "Ġtokenizers"]))}
    return small(vocab, merges, [("<|end|>", True), ("<|start|>", True), ("<think>", False)], {"byte_fallback": False, "fuse_unk": False, "unk_token": None})


def small_sentencepiece(oracle):
    """Gemma's bytes, most common characters, first 2,500 merges and runs of spaces."""
    full = json.loads(oracle.t.to_str())["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in full["merges"]]
    spaces = [m for m in merges if set(m[0] + m[1]) == {"\u2581"} and len(m[0] + m[1]) <= 8]
    merges = spaces + [m for m in merges if set(m[0] + m[1]) - {"\u2581"} and "\n" not in m[0] + m[1] and "\t" not in m[0] + m[1]][:2500]
    pieces = dict.fromkeys(x for a, b in merges for x in (a, b, a + b))
    characters = dict.fromkeys(c for line in ENGLISH + CODE + WORLD[:6] for c in line if c not in "\n\t ")
    vocab = {w: i for i, w in enumerate(dict.fromkeys(["<unk>", "<bos>", "<eos>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581"] + list(pieces) + list(characters)))}
    return small(vocab, merges, [("<unk>", True), ("<bos>", True), ("<eos>", True), ("<b>", False), ("\n\n", False), ("\n", False), ("\u2581\u2581", False)],
                 {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"})


def small(vocab, merges, added, model):
    for token, _ in added:
        vocab.setdefault(token, len(vocab))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocab[token], "content": token, **flags, "special": special} for token, special in sorted(added, key=lambda a: vocab[a[0]])],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False, **model,
                  "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]},
    }


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def bytes_only():
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def patterns():
    """Sequences of patterns by tokenizer.ggml.pre: transformers' where it has them, else as the models' files have them."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as known

    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    cased = "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
    return {name: [known[name]] for name in ("llama-bpe", "qwen2", "tekken", "gpt-4o")} | {
        "deepseek-llm": ["[\r\n]", cased, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+", "\\p{N}+"],
        "deepseek-coder": ["[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"],
        "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""],
        "default": [r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", "[0-9][0-9][0-9]"],
    }


def variants():
    respell = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    meta = lambda scheme: {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    sequence = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
    out = [
        {"name": "gpt2", "base": "byte_level", "pre_tokenizer": gpt2},
        {"name": "digits+gpt2", "base": "byte_level", "pre_tokenizer": sequence(digits, gpt2)},
        {"name": "gemma", "base": "sentencepiece", "normalizer": respell, "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}},
        {"name": "llama2", "base": "sentencepiece", "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, respell]}},
    ]
    out += [{"name": "metaspace-" + s, "base": "sentencepiece", "pre_tokenizer": meta(s)} for s in ("always", "first", "never")]
    for name, steps in patterns().items():
        for extra in ({}, {"ignore_merges": True, "normalizer": {"type": "NFC"}}) if name == "qwen2" else ({},):
            out.append({"name": name + ("+nfc" if extra else ""), "base": "byte_level", "pre_tokenizer": sequence(*map(split, steps), bytes_only()), **extra})
    return out


def apply(base, variant):
    j = json.loads(json.dumps(base))
    for key in ("normalizer", "pre_tokenizer"):
        j[key] = variant.get(key)
    j["model"]["ignore_merges"] = variant.get("ignore_merges", False)
    return j


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--smollm2", required=True)
    args.add_argument("--gemma3", required=True)
    args.add_argument("--show", help="section:index, to print that string and its ids instead of writing anything")
    args = args.parse_args()
    show = args.show.rsplit(":", 1) if args.show else None

    fragments = make_fragments()
    models_ = {"smollm2": smollm2(args.smollm2), "gemma3": gemma3(args.gemma3)}
    bases = {"byte_level": small_byte_level(models_["smollm2"][0]), "sentencepiece": small_sentencepiece(models_["gemma3"][0])}
    sections = {}

    def section(name, oracle, strings):
        for mode in ("text", "parse"):
            if show and show[0] != f"{name}.{mode}":
                continue
            if show:
                strings = list(strings)[int(show[1]):][:1]
            hashes = []
            for s in strings:
                ids = oracle.encode(s, mode == "parse")
                hashes.append(0 if ids is None else hash_ids(ids) or 1)
                if show:
                    print(s, ids, [oracle.t.id_to_token(i) for i in ids])
            sections[f"{name}.{mode}"] = hashes
            print(f"{name}.{mode}: {len(hashes)} strings", file=sys.stderr)

    strings = [compose(fragments, i) for i in range(STRINGS)]
    for name, (oracle, tokens, types) in models_.items():
        section(name, oracle, strings)
        section(name + ".special", oracle, [t.encode() for t, kind in zip(tokens, types) if kind in (2, 3, 4)])
    all_variants = variants()
    for v in all_variants:
        oracle = Oracle(Tokenizer.from_str(json.dumps(apply(bases[v["base"]], v))), v["base"] == "byte_level")
        section(v["name"], oracle, strings[:VARIANT_STRINGS])
    if show:
        return

    dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace(',"merges"', ',\n"merges"') + "\n"
    (HERE / "fragments.txt").write_text("".join(escape(f) + "\n" for f in fragments), encoding="utf-8")
    for name, base in bases.items():
        (HERE / f"{name}.json").write_text(dump(base), encoding="utf-8")
    (HERE / "variants.json").write_text(json.dumps(all_variants, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with open(HERE / "expected.bin", "wb") as out:
        for name, hashes in sections.items():
            out.write(struct.pack("<24sI", name.encode(), len(hashes)) + struct.pack(f"<{len(hashes)}I", *hashes))


if __name__ == "__main__":
    main()
