#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "megatron/data/preprocess/sentences.h"

// The first byte of an input chooses language and what is kept; the rest is the text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  if (size == 0) return 0;
  constexpr const char* kLanguages[] = {"en", "de", "fr", "es"};
  const bool keep = (data[0] & 4) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string_view> sentences;
  data::SentenceSplitter(kLanguages[data[0] % 4], keep).split(text, sentences);
  // Sentences follow one another; what is between them, and before and behind them, is blank, and none if it is kept.
  std::size_t at = 0;
  const auto blank = [](std::string_view part) {
    return part.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
  };
  for (const std::string_view sentence : sentences) {
    const auto begin = static_cast<std::size_t>(sentence.data() - text.data());
    if (begin < at || begin + sentence.size() > text.size() || blank(sentence)) std::abort();
    if (!blank(text.substr(at, begin - at)) || (keep && begin != at)) std::abort();
    at = begin + sentence.size();
  }
  if (!blank(text.substr(at)) || (keep && !sentences.empty() && at != text.size())) std::abort();
  return 0;
}
