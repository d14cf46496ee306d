/* Names of files in the examples are UTF-8, as libcapsedge takes them: on Windows they would be in the code page of the
 * system, which has few letters. */
#ifndef CAPSEDGE_EXAMPLES_NAMES_H_
#define CAPSEDGE_EXAMPLES_NAMES_H_

#include <stdio.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <stdlib.h>
#include <windows.h>
#include <shellapi.h>

/* The words of the command line; they live as long as the program. */
static char** names_of(int count, char** words) {
  int found = 0;
  wchar_t** const wide = CommandLineToArgvW(GetCommandLineW(), &found);
  SetConsoleOutputCP(CP_UTF8);
  for (int i = 0; wide != NULL && i < count && i < found; ++i) {
    const int size = WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, NULL, 0, NULL, NULL);
    char* const word = (char*)malloc((size_t)size);
    if (word == NULL) continue;
    WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, word, size, NULL, NULL);
    words[i] = word;
  }
  return words;
}

static FILE* open_to_read(const char* name) {
  wchar_t wide[MAX_PATH];
  return MultiByteToWideChar(CP_UTF8, 0, name, -1, wide, MAX_PATH) ? _wfopen(wide, L"rb") : NULL;
}
#else
static char** names_of(int count, char** words) {
  (void)count;
  return words;
}

static FILE* open_to_read(const char* name) { return fopen(name, "rb"); }
#endif

#endif
