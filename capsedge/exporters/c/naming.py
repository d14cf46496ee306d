"""Names in the generated source, and strings of a model in the syntaxes of the folder's files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from capsedge.errors import UsageError
from capsedge.runtime.files.text import printable

_DEVICE = re.compile(r"(?:com|lpt)\d")  # files of these names are devices on Windows
_LONGEST = 48


def _reserved(name: str) -> str:
    """Why a network, its symbols and files, cannot have a name; empty if it can."""
    lower = name.lower()
    if len(name) > _LONGEST:
        return f"It has {len(name)} characters; {_LONGEST} is the most."
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII):
        return "It takes letters, digits and underscores, a letter first."
    if lower in RESERVED_WORDS:
        return "It is a word of C or C++."
    if lower in RESERVED_FILES or _DEVICE.fullmatch(lower):
        return "A header, a file of the folder, a target of CMake or a device has this name."
    if lower.startswith("caps_"):
        return "The generated source uses such names itself."
    return ""


def check_prefix(name: str) -> str:
    """Check the symbol prefix that the user chose.

    Raises:
        UsageError: it is no C identifier, or reserved.
    """
    if why := _reserved(name):
        raise UsageError(f"Invalid --name {printable(name)}.", why, "For example: `--name digits`.")
    return name


def prefix_of(stem: str) -> str:
    """A prefix from the name of a file: ``digits-em.int8`` is ``digits_em_int8``."""
    name = _identifier(stem)
    if not name or not name[0].isalpha() or _reserved(name):
        name = f"model_{name}"[:_LONGEST].rstrip("_")
    return name


def _identifier(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    return name[:_LONGEST].rstrip("_")


def c_field_name(name: str, taken: Collection[str]) -> str:
    """A member of a structure from the name of an output.

    Macros would replace it. They are upper case by convention, so such a name gets a prefix, and so do words
    and those of our own sizes. No two members differ only in case, because their sizes are macros.
    """
    field = _identifier(name)
    lower = field.lower()
    macro = field == field.upper() or re.match(r"(?:PRI|SCN)[a-z]", field)
    if macro or not field[0].isalpha() or lower in RESERVED_WORDS or lower in ("input", "picture"):
        field = f"output_{field}".rstrip("_")
    others = {other.upper() for other in taken}
    unique, number = field, 2
    while unique.upper() in others:
        unique, number = f"{field}_{number}", number + 1
    return unique


def c_parameter_name(name: str) -> str:
    """A parameter from the name of an input, behind ``input_``: no type, macro or variable begins so."""
    return f"input_{_identifier(name)}".rstrip("_")


def c_string(text: str) -> str:
    """A C string literal of its UTF-8 bytes, in plain ASCII; no trigraph, no byte that runs into the next."""
    parts = []
    for byte in text.encode("utf-8", "surrogateescape"):
        letter = chr(byte)
        plain = 32 <= byte < 127 and letter not in '"\\?'
        parts.append(letter if plain else f"\\{byte:03o}")
    return '"' + "".join(parts) + '"'


def in_comment(text: str) -> str:
    """Text for a comment of C, CMake or YAML: one line of harmless ASCII characters."""
    return re.sub(r"[^A-Za-z0-9 _.,:+()\[\]-]", "_", text)[:120].strip() or "_"


def ascii_json(document: object) -> str:
    """JSON in ASCII, which is YAML too."""
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def property_value(text: str) -> str:
    """A value of a .properties file of Arduino: one line of plain characters."""
    return in_comment(text)


# Words of C up to C23 and of C++ up to C++23; then what compilers or headers define as macros in lower case.
_LANGUAGE = """
alignas alignof and and_eq asm atomic auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit
continue decltype default delete do double dynamic_cast else enum explicit export extern false float for
friend goto if import inline int long module mutable namespace new noexcept not not_eq nullptr operator
or or_eq private protected public register reinterpret_cast requires restrict return short signed sizeof
static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
arm bit_cast cdecl complex environ errno far fortran hpux huge i386 i486 i586 i686 imaginary interface
l_ctermid l_cuserid l_tmpnam l_tmpnam_s linux main
math_errhandling mips near noreturn p_tmpdir pascal pixel small sparc stderr stdin stdout sun unix vax vector
"""
# Files and targets of a folder for CMake, devices of Windows; headers of C, C++, POSIX and compilers.
_FOLDER = """
all aux clean con depend edit_cache help idf_component install kconfig library list_install_components
nul package package_source preinstall prn program rebuild_cache run_tests step test zephyr
aio algorithm alloca any argz array arduino arpa assert atomic barrier bit bitset byteswap cassert
ccomplex cctype cerrno cfenv cfloat charconv chrono cinttypes ciso646 climits clocale cmath codecvt
compare complex concepts condition_variable coroutine cpio crypt csetjmp csignal cstdalign cstdarg
cstdbool cstddef cstdint cstdio cstdlib cstring ctgmath ctime ctype cuchar cwchar cwctype deque dirent
dlfcn elf endian err errno error exception execution expected fcntl features fenv filesystem flat_map
flat_set float fmtmsg fnmatch format forward_list fstream ftw functional future generator getopt glob grp
iconv ifaddrs initializer_list inttypes iomanip ios iosfwd iostream iso646 istream iterator langinfo
latch libgen limits link list locale malloc map math mdspan memory memory_resource monetary mqueue mutex
ndbm netdb new nl_types numbers numeric optional ostream poll print printf process pthread pty pwd queue
random ranges ratio regex regexp resolv sched scoped_allocator search semaphore set setjmp shared_mutex
signal source_location span spanstream spawn sstream stack stacktrace stdalign stdarg stdatomic stdbit
stdbool stdckdint stddef stdexcept stdfix stdfloat stdint stdio stdlib stdnoreturn stop_token streambuf
string string_view strings stropts strstream syncstream syslog system_error tar termios tgmath thread
threads time trace tuple type_traits typeindex typeinfo uchar ucontext ulimit unistd unordered_map
unordered_set utility utime utmpx valarray variant vector version wait wchar wctype windows wordexp
ammintrin arm_acle arm_bf16 arm_cde arm_cmse arm_fp16 arm_mve arm_neon arm_sve cpuid emmintrin immintrin
intrin mm_malloc mmintrin nmmintrin pmmintrin smmintrin tmmintrin wasm_simd128 wmmintrin x86gprintrin
x86intrin xmmintrin xopintrin
"""
RESERVED_WORDS = frozenset(_LANGUAGE.split())
RESERVED_FILES = frozenset(_FOLDER.split())
