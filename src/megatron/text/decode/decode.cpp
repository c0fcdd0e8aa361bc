#include "megatron/text/decode/decode.h"

#include <algorithm>
#include <array>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/text/characters/byte_spelling.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"

namespace megatron::text {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = from.empty() ? std::string::npos : text.find(from);
  if (at == std::string::npos) return;
  std::string result;
  std::size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = result.append(text, done);
}

/// The end of the chain.
class Write : public DecodeStage {
 public:
  explicit Write(std::string& out) : out_(out) {}
  void take(std::string_view part, bool) override { out_ += part; }
  void finish() override {}

 private:
  std::string& out_;
};

/// A stage before another one.
class Stage : public DecodeStage {
 public:
  explicit Stage(DecodeStage& next) : next_(next) {}
  void finish() override { next_.finish(); }

 protected:
  DecodeStage& next_;
};

/// A stage that needs each token whole: gives a token on when the next begins, or the last is known to be.
class WholeTokens : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool begins) override {
    if (begins && has_token_) flush(false);
    token_ += part;
    has_token_ = true;
  }
  void finish() override {
    if (has_token_) flush(true);
    next_.finish();
  }

 protected:
  /// Changes token number `index` of the text; `last`: none follows.
  virtual void change(std::string& token, std::size_t index, bool last) = 0;

 private:
  void flush(bool last) {
    change(token_, index_++, last);
    next_.take(token_, true);
    token_.clear();
    has_token_ = false;
  }

  std::string token_;
  std::size_t index_ = 0;
  bool has_token_ = false;
};

/// The same for a stage that needs to know neither a token's end nor whether it is the last: tokens come whole to it.
class EachToken : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool) override {
    std::string token(part);
    change(token, index_++);
    next_.take(token, true);
  }

 protected:
  virtual void change(std::string& token, std::size_t index) = 0;

 private:
  std::size_t index_ = 0;
};

class JoinWordPieces : public EachToken {
 public:
  JoinWordPieces(DecodeStage& next, const decoder::WordPiece& options) : EachToken(next), options_(options) {}

 private:
  void change(std::string& token, std::size_t index) override {
    static constexpr std::pair<std::string_view, std::string_view> kCleanup[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    if (index > 0) {
      if (token.starts_with(options_.prefix))
        token.erase(0, options_.prefix.size());
      else
        token.insert(0, 1, ' ');
    }
    if (options_.cleanup)
      for (const auto& [from, to] : kCleanup) replace_all(token, from, to);
  }

  decoder::WordPiece options_;
};

class MarksToSpaces : public EachToken {
 public:
  MarksToSpaces(DecodeStage& next, const decoder::Metaspace& options) : EachToken(next), options_(options) {}

 private:
  void change(std::string& token, std::size_t index) override {
    replace_all(token, options_.replacement, index == 0 && options_.prepend != PrependScheme::Never ? "" : " ");
  }

  decoder::Metaspace options_;
};

class ReplaceInTokens : public EachToken {
 public:
  ReplaceInTokens(DecodeStage& next, const decoder::Replace& options) : EachToken(next), options_(options) {
    if (options.pattern.is_regex) regex_.emplace(options.pattern.text, "decoder");
  }

 private:
  void change(std::string& token, std::size_t) override {
    if (!regex_) return replace_all(token, options_.pattern.text, options_.content);
    std::string result;
    std::size_t done = 0;
    matcher_.for_each(*regex_, token, [&](std::size_t begin, std::size_t end) {
      result.append(token, done, begin - done).append(options_.content);
      done = end;
    });
    token = result.append(token, done);
  }

  decoder::Replace options_;
  std::optional<Regex> regex_;
  Regex::Matcher matcher_;
};

/// Runs of bytes become text where a whole run is UTF-8, else a replacement character for each.
class JoinBytes : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool) override {
    if (const int byte = spelled_byte(part); byte >= 0) {
      bytes_.push_back(static_cast<char>(byte));
      return;
    }
    flush();
    next_.take(part, true);
  }
  void finish() override {
    flush();
    next_.finish();
  }

 private:
  void flush() {
    if (bytes_.empty()) return;
    if (valid_utf8(bytes_))
      next_.take(bytes_, true);
    else
      for (std::size_t i = 0; i < bytes_.size(); ++i) next_.take(kReplacement, true);
    bytes_.clear();
  }

  std::string bytes_;
};

/// All tokens are parts of one.
class JoinAll : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool) override { next_.take(part, !std::exchange(any_, true)); }

 private:
  bool any_ = false;
};

/// Gives on only whole tokens, for stages behind JoinAll that cannot take parts.
class Gather : public WholeTokens {
 public:
  using WholeTokens::WholeTokens;

 private:
  void change(std::string&, std::size_t, bool) override {}
};

class StripEnds : public Stage {
 public:
  StripEnds(DecodeStage& next, const decoder::Strip& options) : Stage(next), options_(options) {}
  void take(std::string_view part, bool begins) override {
    if (begins) {
      end_token();
      begins_ = true;
      start_left_ = options_.content.empty() ? 0 : options_.start;
    }
    while (start_left_ > 0 && part.starts_with(options_.content)) {
      part.remove_prefix(options_.content.size());
      --start_left_;
    }
    if (!part.empty()) start_left_ = 0;
    kept_ += part;
    // What could be taken away at the end waits: at most `stop` times the character.
    std::size_t tail = 0;
    const std::size_t most = static_cast<std::size_t>(options_.stop) * options_.content.size();
    if (!options_.content.empty())
      while (tail < most && std::string_view(kept_).substr(0, kept_.size() - tail).ends_with(options_.content))
        tail += options_.content.size();
    give(kept_.size() - tail);
  }
  void finish() override {
    end_token();
    next_.finish();
  }

 private:
  void give(std::size_t size) {
    next_.take(std::string_view(kept_).substr(0, size), std::exchange(begins_, false));
    kept_.erase(0, size);
  }
  void end_token() {
    kept_.clear();  // what still waits is what goes
  }

  decoder::Strip options_;
  std::int32_t start_left_ = 0;
  bool begins_ = false;
  std::string kept_;
};

class SuffixToSpace : public WholeTokens {
 public:
  SuffixToSpace(DecodeStage& next, const decoder::BpeSuffix& options) : WholeTokens(next), options_(options) {}

 private:
  void change(std::string& token, std::size_t, bool last) override {
    replace_all(token, options_.suffix, last ? "" : " ");
  }

  decoder::BpeSuffix options_;
};

/// Without decoders tokens have a space between.
class SpaceBetween : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool) override {
    if (std::exchange(any_, true)) next_.take(" ", true);
    next_.take(part, true);
  }

 private:
  bool any_ = false;
};

/// SentencePiece's own: takes tokens as Decoding::push spells them for it, a letter for their kind first.
class SentencePieceSurfaces : public Stage {
 public:
  SentencePieceSurfaces(DecodeStage& next, const decoder::SentencePiece& options) : Stage(next), options_(options) {}

  void take(std::string_view part, bool) override {
    const char kind = part.front();
    part.remove_prefix(1);
    if (kind == 'b') {
      bytes_ += part;
      while (!bytes_.empty() && give_character(false)) continue;
      return;
    }
    while (!bytes_.empty()) give_character(true);
    if (seen_space_ || any_) at_begin_ = false;
    seen_space_ = false;
    if (kind == 'c') return;
    if (kind == 'u') return give(options_.unknown_surface);
    if (at_begin_ && options_.drop_first_space && part.starts_with(kMark)) {
      part.remove_prefix(kMark.size());
      seen_space_ = !options_.drop_all_first_spaces;
    }
    std::string text(part);
    replace_all(text, kMark, " ");
    give(text);
  }

  void finish() override {
    while (!bytes_.empty()) give_character(true);
    next_.finish();
  }

 private:
  static constexpr std::string_view kMark = "\u2581";

  void give(std::string_view text) {
    any_ = any_ || !text.empty();
    if (!text.empty()) next_.take(text, true);
  }

  /// Gives the first character of `bytes_`; false where it may not be complete and more could come.
  bool give_character(bool all) {
    const DecodedChar c = decode_utf8(bytes_.data(), bytes_.data() + bytes_.size());
    if (c.length == 0 && !all && bytes_.size() < 4) return false;
    const auto size = static_cast<std::size_t>(std::max(c.length, 1));
    give(c.length == 0 ? kReplacement : std::string_view(bytes_).substr(0, size));
    bytes_.erase(0, size);
    return true;
  }

  decoder::SentencePiece options_;
  std::string bytes_;
  bool any_ = false, at_begin_ = true, seen_space_ = false;
};

/// Gives tokens on as they are: their bytes are what ByteLevel would read from their spelling.
class PassOn : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool begins) override { next_.take(part, begins); }
};

std::unique_ptr<DecodeStage> make_stage(const Decoder& step, DecodeStage& next) {
  namespace d = decoder;
  using Pointer = std::unique_ptr<DecodeStage>;
  struct Visit {
    DecodeStage& next;
    Pointer operator()(const d::ByteLevel&) const { return std::make_unique<PassOn>(next); }
    Pointer operator()(const d::WordPiece& s) const { return std::make_unique<JoinWordPieces>(next, s); }
    Pointer operator()(const d::Metaspace& s) const { return std::make_unique<MarksToSpaces>(next, s); }
    Pointer operator()(const d::Replace& s) const { return std::make_unique<ReplaceInTokens>(next, s); }
    Pointer operator()(const d::ByteFallback&) const { return std::make_unique<JoinBytes>(next); }
    Pointer operator()(const d::Fuse&) const { return std::make_unique<JoinAll>(next); }
    Pointer operator()(const d::Strip& s) const { return std::make_unique<StripEnds>(next, s); }
    Pointer operator()(const d::BpeSuffix& s) const { return std::make_unique<SuffixToSpace>(next, s); }
    Pointer operator()(const d::SentencePiece& s) const { return std::make_unique<SentencePieceSurfaces>(next, s); }
  };
  return std::visit(Visit{next}, step);
}

char kind_of(SentencePiece::Type type) {
  switch (type) {
    case SentencePiece::Type::Control:
      return 'c';
    case SentencePiece::Type::Unknown:
      return 'u';
    case SentencePiece::Type::Byte:
      return 'b';
    default:
      return 't';
  }
}

}  // namespace

Decoding::Decoding(const Vocabulary& vocabulary) : vocabulary_(vocabulary), out_(std::make_unique<std::string>()) {
  const std::vector<Decoder> steps = decoders_of(vocabulary);
  stages_.push_back(std::make_unique<Write>(*out_));
  for (std::size_t i = steps.size(); i-- > 0;) {
    stages_.push_back(make_stage(steps[i], *stages_.back()));
    const bool takes_parts = std::holds_alternative<decoder::Strip>(steps[i]) ||
                             std::holds_alternative<decoder::ByteLevel>(steps[i]) ||
                             std::holds_alternative<decoder::Fuse>(steps[i]);
    const bool behind_fuse =
        i > 0 && std::any_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(i),
                             [](const Decoder& d) { return std::holds_alternative<decoder::Fuse>(d); });
    if (!takes_parts && behind_fuse) stages_.push_back(std::make_unique<Gather>(*stages_.back()));
  }
  if (steps.empty()) stages_.push_back(std::make_unique<SpaceBetween>(*stages_.back()));
}

void Decoding::push(std::int32_t id, std::string& out) {
  const auto index = static_cast<std::size_t>(id);
  const std::string& token = vocabulary_.tokens[index];
  if (token.empty()) return;  // a hole
  if (const auto& pieces = vocabulary_.sentence_piece) {
    const char kind = kind_of(pieces->types[index]);
    std::string spelled(1, kind);
    if (kind == 'b')
      spelled.push_back(static_cast<char>(spelled_byte(token)));
    else
      spelled += token;
    stages_.back()->take(spelled, true);
  } else {
    stages_.back()->take(token, true);
  }
  out += *out_;
  out_->clear();
}

void Decoding::finish(std::string& out) {
  stages_.back()->finish();
  out += *out_;
  out_->clear();
}

}  // namespace megatron::text
