"""Names that neither a network nor an output can have in C, without regard to case."""

from __future__ import annotations

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
WORDS = frozenset(_LANGUAGE.split())
FILES = frozenset(_FOLDER.split())
