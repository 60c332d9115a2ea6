"""Word boundaries of Thai for a Java without them, because Elasticsearch refuses every index there."""

import struct
import zipfile
from pathlib import Path

_PROVIDER = "java/text/spi/BreakIteratorProvider"
_CLASS = "vitrine/ThaiBoundaries"
_LOCALE, _ITERATOR = "java/util/Locale", "java/text/BreakIterator"
_JAVA_17 = 61
_PUBLIC, _PUBLIC_CLASS = 0x0001, 0x0021
_KINDS = ("Word", "Line", "Character", "Sentence")


def write_provider(path: Path) -> None:
    """A jar whose only class takes every character of Thai for a word: the Thai analyzer then is of no use, and all
    others work."""
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(f"META-INF/services/{_PROVIDER.replace('/', '.')}", _CLASS.replace("/", "."))
        jar.writestr(f"{_CLASS}.class", _class_file())


def _class_file() -> bytes:
    """In Java:

    public class ThaiBoundaries extends BreakIteratorProvider {
        public Locale[] getAvailableLocales() { return new Locale[] {new Locale("th")}; }
        public BreakIterator getWordInstance(Locale locale) { return BreakIterator.getCharacterInstance(Locale.ROOT); }
        …the same for lines, characters and sentences
    }
    """
    pool = _Pool()
    header = struct.pack(">HHH", _PUBLIC_CLASS, pool.type(_CLASS), pool.type(_PROVIDER))
    iterator_of = f"(L{_LOCALE};)L{_ITERATOR};"
    root = pool.member(_FIELD, _LOCALE, "ROOT", f"L{_LOCALE};")
    characters = pool.member(_METHOD, _ITERATOR, "getCharacterInstance", iterator_of)
    instance = b"\xb2" + _u2(root) + b"\xb8" + _u2(characters) + b"\xb0"  # getstatic, invokestatic, areturn
    methods = [
        pool.method("<init>", "()V", _constructor(pool)),
        pool.method("getAvailableLocales", f"()[L{_LOCALE};", _locales(pool)),
        *(pool.method(f"get{kind}Instance", iterator_of, instance) for kind in _KINDS),
    ]
    body = header + _u2(0) + _u2(0) + _u2(len(methods)) + b"".join(methods) + _u2(0)
    return struct.pack(">IHH", 0xCAFEBABE, 0, _JAVA_17) + pool.packed() + body


def _constructor(pool: "_Pool") -> bytes:
    parent = pool.member(_METHOD, _PROVIDER, "<init>", "()V")
    return b"\x2a\xb7" + _u2(parent) + b"\xb1"  # aload_0, invokespecial, return


def _locales(pool: "_Pool") -> bytes:
    locale = _u2(pool.type(_LOCALE))
    create = _u2(pool.member(_METHOD, _LOCALE, "<init>", "(Ljava/lang/String;)V"))
    array = b"\x04\xbd" + locale + b"\x59\x03"  # iconst_1, anewarray, dup, iconst_0
    thai = b"\xbb" + locale + b"\x59\x13" + _u2(pool.text("th")) + b"\xb7" + create  # new, dup, ldc_w, invokespecial
    return array + thai + b"\x53\xb0"  # aastore, areturn


_UTF8, _TYPE, _TEXT, _FIELD, _METHOD, _NAME_AND_TYPE = 1, 7, 8, 9, 10, 12
_MAX_STACK, _MAX_LOCALS = 6, 2


class _Pool:
    """The constants of a class file; each is numbered from 1 and stored once."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []

    def type(self, name: str) -> int:
        return self._add(_TYPE, _u2(self._utf8(name)))

    def text(self, value: str) -> int:
        return self._add(_TEXT, _u2(self._utf8(value)))

    def member(self, kind: int, owner: str, name: str, descriptor: str) -> int:
        named = self._add(_NAME_AND_TYPE, _u2(self._utf8(name)) + _u2(self._utf8(descriptor)))
        return self._add(kind, _u2(self.type(owner)) + _u2(named))

    def method(self, name: str, descriptor: str, code: bytes) -> bytes:
        attribute = struct.pack(">HHI", _MAX_STACK, _MAX_LOCALS, len(code)) + code + _u2(0) + _u2(0)
        head = struct.pack(">HHHH", _PUBLIC, self._utf8(name), self._utf8(descriptor), 1)
        return head + struct.pack(">HI", self._utf8("Code"), len(attribute)) + attribute

    def packed(self) -> bytes:
        return _u2(len(self._entries) + 1) + b"".join(self._entries)

    def _utf8(self, text: str) -> int:
        return self._add(_UTF8, _u2(len(text)) + text.encode("ascii"))

    def _add(self, kind: int, content: bytes) -> int:
        entry = bytes([kind]) + content
        if entry not in self._entries:
            self._entries.append(entry)
        return self._entries.index(entry) + 1


def _u2(number: int) -> bytes:
    return struct.pack(">H", number)
