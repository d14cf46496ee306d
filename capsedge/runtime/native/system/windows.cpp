#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <fcntl.h>
#include <io.h>
#include <locale.h>
#include <sys/stat.h>
#include <windows.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "system/system.h"

namespace capsedge {

namespace {

constexpr DWORD kLongestName = 32768;

std::wstring wide(const std::string& text) {
  const int bytes = static_cast<int>(text.size());
  const int size = MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, nullptr, 0);
  std::wstring made(static_cast<size_t>(size), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, made.data(), size);
  return made;
}

std::string narrow(const wchar_t* text, size_t count) {
  const int letters = static_cast<int>(count);
  const int size = WideCharToMultiByte(CP_UTF8, 0, text, letters, nullptr, 0, nullptr, nullptr);
  std::string made(static_cast<size_t>(size), '\0');
  WideCharToMultiByte(CP_UTF8, 0, text, letters, made.data(), size, nullptr, nullptr);
  return made;
}

std::string message_of(DWORD error) {
  wchar_t* text = nullptr;
  const DWORD size = FormatMessageW(
      FORMAT_MESSAGE_ALLOCATE_BUFFER | FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, error, 0,
      reinterpret_cast<wchar_t*>(&text), 0, nullptr);
  std::string made = size ? narrow(text, size) : "error " + std::to_string(error);
  LocalFree(text);
  while (!made.empty() && std::strchr("\r\n .", made.back())) made.pop_back();
  return made;
}

std::string file_of_module(HMODULE module) {
  std::wstring name(kLongestName, L'\0');
  const std::string path = narrow(name.data(), GetModuleFileNameW(module, name.data(), kLongestName));
  const std::string real = resolved(path);
  return real.empty() ? path : real;
}

// \\?\C:\x is C:\x, and \\?\UNC\server\x is \\server\x.
std::string without_prefix(const std::string& path) {
  if (path.compare(0, 8, "\\\\?\\UNC\\") == 0) return "\\" + path.substr(7);
  return path.compare(0, 4, "\\\\?\\") == 0 ? path.substr(4) : path;
}

}  // namespace

void* load_library(const std::string& path, std::string* why) {
  std::string said;
  if (path.find_first_of(kSeparators) == std::string::npos) {
    said = "it is named without its folder, and Windows would take one of its own";
  } else {
    // What the library itself needs is searched beside it, never in the working folder.
    const std::string full = resolved(path);
    void* const library = LoadLibraryExW(wide(full.empty() ? path : full).c_str(), nullptr,
                                         LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR);
    if (library != nullptr) return library;
    const DWORD error = GetLastError();
    said = !full.empty() && error == ERROR_MOD_NOT_FOUND ? "a library that it needs was not found" : message_of(error);
  }
  if (why != nullptr) *why = said;
  return nullptr;
}

void* loaded_library(const std::string& name) {
  HMODULE library = nullptr;
  return GetModuleHandleExW(0, wide(name).c_str(), &library) ? library : nullptr;
}

void close_library(void* library) { FreeLibrary(static_cast<HMODULE>(library)); }

void* symbol_of(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

void* symbol_of_process(const char* name) { return symbol_of(GetModuleHandleW(nullptr), name); }

std::string file_of_library(void* library) { return file_of_module(static_cast<HMODULE>(library)); }

std::string file_of_address(const void* address) {
  HMODULE library = nullptr;
  const DWORD how = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  return GetModuleHandleExW(how, static_cast<const wchar_t*>(address), &library) ? file_of_module(library) : "";
}

bool is_folder(const std::string& path) {
  const DWORD found = GetFileAttributesW(wide(path).c_str());
  return found != INVALID_FILE_ATTRIBUTES && (found & FILE_ATTRIBUTE_DIRECTORY);
}

bool is_file(const std::string& path) {
  const DWORD found = GetFileAttributesW(wide(path).c_str());
  return found != INVALID_FILE_ATTRIBUTES && !(found & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE));
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  WIN32_FIND_DATAW entry;
  HANDLE const search = FindFirstFileW(wide(folder + "\\*").c_str(), &entry);
  if (search == INVALID_HANDLE_VALUE) return names;
  do names.push_back(narrow(entry.cFileName, std::wcslen(entry.cFileName)));
  while (FindNextFileW(search, &entry));
  FindClose(search);
  return names;
}

std::string resolved(const std::string& path) {
  const std::wstring name = wide(path);
  std::wstring full(kLongestName, L'\0');
  HANDLE const file = CreateFileW(name.c_str(), 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                                  OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr);
  if (file != INVALID_HANDLE_VALUE) {
    const DWORD size = GetFinalPathNameByHandleW(file, full.data(), kLongestName, FILE_NAME_NORMALIZED);
    CloseHandle(file);
    if (size > 0 && size < kLongestName) return without_prefix(narrow(full.data(), size));
  }
  // Some drives know no final names.
  if (GetFileAttributesW(name.c_str()) == INVALID_FILE_ATTRIBUTES) return "";
  return narrow(full.data(), GetFullPathNameW(name.c_str(), kLongestName, full.data(), nullptr));
}

Opened open_for_reading(const std::string& path) {
  Opened opened;
  if (is_folder(path)) return opened;
  const int number = _wopen(wide(path).c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT);
  if (number < 0) {
    opened.why = std::strerror(errno);
    return opened;
  }
  struct _stat64 found {};
  opened.regular = GetFileType(reinterpret_cast<HANDLE>(_get_osfhandle(number))) == FILE_TYPE_DISK &&
                   _fstat64(number, &found) == 0 && (found.st_mode & _S_IFMT) == _S_IFREG;
  opened.bytes = found.st_size;
  opened.file = _fdopen(number, "rb");
  if (opened.file == nullptr) {
    opened.why = std::strerror(errno);
    _close(number);
  }
  return opened;
}

std::string trusted_variable(const char* name) {
  const wchar_t* const value = _wgetenv(wide(name).c_str());
  return value ? narrow(value, std::wcslen(value)) : "";
}

void set_default_variable(const char* name, const char* value) {
  if (std::getenv(name) == nullptr) _putenv_s(name, value);
}

int limited_processors() {
  DWORD_PTR process = 0, system = 0;
  if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system) || process == system) return 0;
  return __builtin_popcountll(process);
}

double to_double(const char* digits) {
  static const _locale_t kC = _create_locale(LC_ALL, "C");
  return _strtod_l(digits, nullptr, kC);
}

}  // namespace capsedge

#endif
