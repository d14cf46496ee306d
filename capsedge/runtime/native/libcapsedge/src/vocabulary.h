// Words in files and from callers, as the enumerations of generated/metadata.h.
#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include "generated/metadata.h"
#include "json.h"

namespace capsedge::libcapsedge {

// kUnknown for any other text.
template <typename Word>
Word word_of(std::string_view text) {
  const auto& words = spec::words_of(Word{});
  for (size_t i = 0; i < std::size(words); ++i)
    if (text == words[i]) return static_cast<Word>(i);
  return Word::kUnknown;
}

// Throws JsonError for any other text; `what` names it.
template <typename Word>
Word known_word(const std::string& text, const char* what) {
  const Word word = word_of<Word>(text);
  if (word == Word::kUnknown) throw JsonError(std::string(what) + " '" + text.substr(0, 80) + "'");
  return word;
}

template <typename Word>
const char* text_of(Word word) {
  return spec::words_of(word)[static_cast<size_t>(word)];
}

// All of them except the empty one, for display.
template <typename Word>
std::string known_words() {
  std::string text;
  for (const std::string_view word : spec::words_of(Word{}))
    if (!word.empty()) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

}  // namespace capsedge::libcapsedge
