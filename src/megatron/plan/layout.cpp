#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/plan/stages.h"

// The grammar of parallel.pp_layout:
//   sequence = { item }       item = ( 'E' | 't' | 'L' | '|' | '(' sequence ')' ) [ '*' number ]
namespace megatron::plan {
namespace {

constexpr std::size_t kMaxText = 1 << 16, kMaxSymbols = 1 << 16, kDeepest = 32;

class LayoutParser {
 public:
  explicit LayoutParser(const std::string& text) : text_(text) {}

  /// The letters and bars that the text stands for.
  std::string unrolled() {
    if (text_.size() > kMaxText) fail("it must have at most 65536 characters");
    std::string symbols = sequence(0);
    if (peek() != '\0') fail("')' without '('");
    return symbols;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    constexpr std::size_t kShown = 60;
    const std::size_t begin = at_ > kShown ? at_ - kShown : 0;
    throw ConfigError(
        rule_got_fix(concat("parallel.pp_layout cannot be read: ", problem, " (character ", at_ + 1, ")."),
                     text_.substr(begin, 2 * kShown) + "\n        " + std::string(at_ - begin, ' ') + "^",
                     "--pp-layout balanced, or such as \"Et*3|t*4|t*4|t*3L\""));
  }

  char peek() {
    while (at_ < text_.size() && (text_[at_] == ',' || text_[at_] == ' ')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  std::string sequence(std::size_t depth) {
    std::string symbols;
    for (char next = peek(); next != '\0' && next != ')'; next = peek()) {
      std::string item(1, next);
      if (next == '(') {
        if (depth == kDeepest) fail("groups within groups go too deep");
        ++at_;
        item = sequence(depth + 1);
        if (peek() != ')') fail("')' is missing");
      } else if (next == 'm') {
        fail("m, a depth of multi-token prediction, is not placed here: all are on the stage with the output");
      } else if (next != 'E' && next != 't' && next != 'L' && next != '|') {
        fail("only E, t, L, |, (, ), * and numbers have a meaning");
      }
      ++at_;
      const std::size_t times = repetition();
      if (times > kMaxSymbols || item.size() * times > kMaxSymbols - symbols.size())
        fail("it stands for more than 65536 letters");
      for (std::size_t k = 0; k < times; ++k) symbols += item;
    }
    return symbols;
  }

  std::size_t repetition() {
    if (peek() != '*') return 1;
    ++at_;
    peek();
    std::size_t number = 0, digits = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, ++digits)
      number = std::min(kMaxSymbols + 1, number * 10 + static_cast<std::size_t>(text_[at_] - '0'));
    if (digits == 0 || number == 0) fail("'*' needs a number of at least 1");
    return number;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<StageSpec> parse_layout(const std::string& layout, EmptyStages empty) {
  std::string symbols = LayoutParser(layout).unrolled();
  const auto count = [&](char symbol) { return std::count(symbols.begin(), symbols.end(), symbol); };
  if (count('E') != 1 || count('L') != 1 || symbols.front() != 'E' || symbols.back() != 'L')
    throw ConfigError(rule_got_fix("parallel.pp_layout must begin with E, end with L, and have each of them once.",
                                   layout.substr(0, 120), "--pp-layout balanced, or such as \"Et*3|t*4|t*4|t*3L\""));
  if (empty == EmptyStages::Refused && symbols.find("||") != std::string::npos)
    throw ConfigError(rule_got_fix(
        "parallel.pp_layout must give every stage a layer, the embedding or the loss.",
        concat(layout.substr(0, 120), " (stage ",
               std::count(symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(symbols.find("||")), '|') + 1,
               " has nothing)"),
        "--pp-layout balanced, or one | between two stages"));
  std::vector<std::int64_t> layers{0};
  for (const char symbol : symbols) {
    if (symbol == '|') layers.push_back(0);
    if (symbol == 't') ++layers.back();
  }
  return parts_of_layers(layers);
}

std::string text_of_stages(const std::vector<StageSpec>& parts) {
  std::string text;
  for (const StageSpec& part : parts) {
    if (!text.empty()) text += '|';
    if (part.embedding) text += 'E';
    if (part.num_layers > 0) text += concat("t*", part.num_layers);
    if (part.output) text += 'L';
  }
  return text;
}

}  // namespace megatron::plan
