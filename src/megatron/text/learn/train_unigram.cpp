#include "megatron/text/learn/train_unigram.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

// The library sums what its threads found: another number of them gives another model in the last digits.
constexpr const char* kThreads = "8";
constexpr std::size_t kMaxLine = 4000;  // the library leaves longer ones than 4192 out

/// Whether the library's normalization leaves nothing of the line: it ends the program where it has no other. Spaces,
/// controls, what marks a space, and bytes that are no UTF-8.
bool is_blank_line(std::string_view line) {
  bool blank = true;
  for_each_character(line, [&](const DecodedChar& c, std::size_t, std::size_t) {
    const std::uint32_t code = c.code_point;
    const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    const bool is_invisible = (code >= 0x200B && code <= 0x200F) || code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
    blank = blank &&
            (c.length == 0 || is_control || is_invisible || UnicodeClasses::instance().of(code) == CharClass::Space);
  });
  return blank;
}

/// The lines of the documents that say something, one by one, as the library asks for them.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::function<bool(std::string&)>& next) : next_(next) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    line_.clear();
    while (is_blank_line(line_) && !done_) {
      line_.clear();
      if (at_ < document_.size())
        take_line();
      else
        take_document();
    }
  }

  /// Throws what the source of the documents threw.
  void check() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void take_document() {
    at_ = 0;
    try {
      done_ = !next_(document_);
    } catch (...) {  // not through the library's own code
      failure_ = std::current_exception();
      done_ = true;
    }
  }

  void take_line() {
    std::size_t end = std::min(document_.find_first_of(std::string_view("\n\0", 2), at_), document_.size());
    if (end - at_ > kMaxLine) {
      const std::size_t blank = document_.rfind(' ', at_ + kMaxLine);
      end = blank != std::string::npos && blank > at_ ? blank : at_ + kMaxLine;
      while (end > at_ + 1 && (static_cast<unsigned char>(document_[end]) & 0xC0) == 0x80) --end;
    }
    line_.assign(document_, at_, end - at_);
    at_ = end + (end < document_.size() && (document_[end] == '\n' || document_[end] == '\0') ? 1 : 0);
  }

  const std::function<bool(std::string&)>& next_;
  std::string document_, line_;
  std::size_t at_ = 0;
  bool done_ = false;
  std::exception_ptr failure_;
};

/// A list of one value that the library takes apart at commas.
std::string quoted_list(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) {
    list += list.empty() ? "\"" : ",\"";
    for (const char c : value) list.append(c == '"' ? 2 : 1, c);
    list += '"';
  }
  return list;
}

}  // namespace

std::string train_unigram(const std::function<bool(std::string&)>& next, const TrainOptions& options) {
  options.check(kUnigramAlphabet);
  std::unordered_map<std::string, std::string> settings = {{"model_type", "unigram"},
                                                           {"vocab_size", std::to_string(options.vocab_size)},
                                                           {"num_threads", kThreads},
                                                           {"minloglevel", "3"}};
  if (!options.specials.empty()) settings["control_symbols"] = quoted_list(options.specials);
  Lines lines(next);
  lines.check();
  if (lines.done())
    throw ConfigError(rule_got_fix("the input must hold text.", "no character",
                                   "--input a file with text; of JSON lines, the key that holds it: --json-key"));
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  lines.check();
  if (!status.ok())
    throw ConfigError(rule_got_fix("SentencePiece must be able to learn a Unigram model from the text.",
                                   status.error_message(), "a smaller --vocab-size, or more text"));
  return model;
}

}  // namespace megatron::text
