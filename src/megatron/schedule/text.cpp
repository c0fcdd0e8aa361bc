#include "megatron/schedule/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::schedule {
namespace {

void append(std::string& text, const Op& op) {
  text += to_string(op.kind);
  text += std::to_string(op.stage);
  text += '.';
  text += std::to_string(op.microbatch);
  if (op.partial) text += 'p';
}

std::string quoted(std::string_view word) {
  constexpr std::size_t kShown = 32;
  std::string text = "'";
  for (const char c : word.substr(0, kShown)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (word.size() > kShown ? "…'" : "'");
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Program parse() {
    while (next_line()) {
      const std::string_view key = next_word();
      if (key.empty()) continue;
      if (key == "stages")
        read_stages();
      else if (key == "microbatches")
        read_microbatches();
      else if (key == "max-live")
        read_max_live();
      else if (key == "forward-only")
        read_forward_only();
      else if (key == "rank")
        read_rank();
      else
        refuse("a line begins with stages, microbatches, max-live, forward-only or rank.", quoted(key));
    }
    word_ = text_.size();
    require_head();
    const auto missing = std::find(has_rank_.begin(), has_rank_.end(), false);
    if (missing != has_rank_.end())
      refuse("each rank has a line.", concat("none for rank ", missing - has_rank_.begin()));
    return std::move(program_);
  }

 private:
  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    throw ConfigError(rule_got_fix(
        concat("schedule ", name_, ", line ", line_number_, ", column ", word_ - line_begin_ + 1, ": ", rule), got,
        "megatron plan RECIPE … --draw schedule.txt writes such files"));
  }

  bool next_line() {
    if (line_number_ > 0) {
      if (line_end_ == text_.size()) return false;
      line_begin_ = line_end_ + 1;
    }
    ++line_number_;
    line_end_ = std::min(text_.find('\n', line_begin_), text_.size());
    next_ = word_ = line_begin_;
    return true;
  }

  /// Empty at the end of the line or where a comment begins.
  std::string_view next_word() {
    while (next_ < line_end_ && is_space(text_[next_])) ++next_;
    word_ = next_;
    if (next_ < line_end_ && text_[next_] == '#') next_ = line_end_;
    if (next_ == line_end_) return {};
    while (next_ < line_end_ && !is_space(text_[next_])) ++next_;
    return text_.substr(word_, next_ - word_);
  }

  /// Digits from `at` on; moves past them.
  int number(std::string_view word, std::size_t& at, std::int64_t below, const char* what) const {
    const std::size_t begin = at;
    std::int64_t value = 0;
    for (; at < word.size() && is_digit(word[at]); ++at)
      if ((value = 10 * value + (word[at] - '0')) >= below)
        refuse(concat(what, " is a number below ", below, "."), quoted(word));
    if (at == begin) refuse(concat(what, " is a number."), quoted(word));
    return static_cast<int>(value);
  }
  int whole_number(std::string_view word, std::int64_t below, const char* what) const {
    std::size_t at = 0;
    const int value = number(word, at, below, what);
    if (at < word.size()) refuse(concat(what, " is a number."), quoted(word));
    return value;
  }

  void once(bool& seen, const char* key) {
    if (seen) refuse(concat("one line ", key, "."), "another one");
    seen = true;
  }
  void end_of_line() {
    const std::string_view word = next_word();
    if (!word.empty()) refuse("nothing more in this line.", quoted(word));
  }
  void require_head() const {
    if (!has_stages_ || !has_microbatches_)
      refuse("the lines stages and microbatches come before those of ranks.",
             concat("no line ", has_stages_ ? "microbatches" : "stages"));
  }

  void read_stages() {
    once(has_stages_, "stages");
    std::vector<int> rank_of_stage;
    for (std::string_view word = next_word(); !word.empty(); word = next_word()) {
      if (rank_of_stage.size() == static_cast<std::size_t>(kMaxStages))
        refuse(concat("at most ", kMaxStages, " stages."), "more");
      rank_of_stage.push_back(whole_number(word, kMaxRanks, "the rank of a stage"));
    }
    if (rank_of_stage.empty()) refuse("at least one stage.", "none");
    std::vector<bool> has_stage(
        static_cast<std::size_t>(*std::max_element(rank_of_stage.begin(), rank_of_stage.end())) + 1);
    for (const int rank : rank_of_stage) has_stage[static_cast<std::size_t>(rank)] = true;
    const auto without = std::find(has_stage.begin(), has_stage.end(), false);
    if (without != has_stage.end())
      refuse("every rank has a stage.", concat("none on rank ", without - has_stage.begin()));
    has_rank_.assign(has_stage.size(), false);
    program_.ranks.resize(has_stage.size());
    program_.placement = Placement(std::move(rank_of_stage));
  }

  void read_microbatches() {
    once(has_microbatches_, "microbatches");
    program_.num_microbatches = whole_number(next_word(), kMaxMicrobatches + 1, "microbatches");
    if (program_.num_microbatches == 0) refuse("at least one microbatch.", "0");
    end_of_line();
  }

  void read_max_live() {
    once(has_max_live_, "max-live");
    require_head();
    for (std::string_view word = next_word(); !word.empty(); word = next_word()) {
      if (program_.max_live.size() == program_.ranks.size()) refuse("max-live has one number for each rank.", "more");
      program_.max_live.push_back(whole_number(word, kMaxOps, "max-live"));
    }
    if (program_.max_live.size() < program_.ranks.size())
      refuse("max-live has one number for each rank.",
             concat(program_.max_live.size(), " numbers for ", program_.ranks.size(), " ranks"));
  }

  void read_forward_only() {
    once(program_.forward_only, "forward-only");
    end_of_line();
  }

  void read_rank() {
    require_head();
    const std::string_view word = next_word();
    std::size_t at = 0;
    const auto rank = static_cast<std::size_t>(
        number(word, at, static_cast<std::int64_t>(program_.ranks.size()), "the rank of a line"));
    if (word.substr(at) != ":") refuse("a rank's line begins with 'rank N:'.", quoted(word));
    if (has_rank_[rank]) refuse("one line for each rank.", concat("another one for rank ", rank));
    has_rank_[rank] = true;
    const std::string_view rest = text_.substr(next_, line_end_ - next_);
    constexpr std::size_t kShortest = 5;  // " F0.0"
    const auto most = std::min<std::size_t>(static_cast<std::size_t>(std::count(rest.begin(), rest.end(), '.')),
                                            rest.size() / kShortest);
    num_ops_ += static_cast<std::int64_t>(most);  // before memory is taken
    if (num_ops_ > kMaxOps) refuse(concat("at most ", kMaxOps, " operations."), "more");
    std::vector<Op>& ops = program_.ranks[rank];
    ops.reserve(most);
    for (std::string_view op = next_word(); !op.empty(); op = next_word()) ops.push_back(parse_op(op));
  }

  Op parse_op(std::string_view word) const {
    Op op;
    std::size_t at = std::min(word.find_first_of("0123456789"), word.size());
    op.kind = parse_kind(word, word.substr(0, at));
    op.stage = number(word, at, program_.placement.num_stages(), "the stage of an operation");
    if (at == word.size() || word[at] != '.')
      refuse("an operation is like F0.1: kind, stage, microbatch.", quoted(word));
    ++at;
    op.microbatch = number(word, at, program_.num_microbatches, "the microbatch of an operation");
    if (at + 1 == word.size() && word[at] == 'p' && is_computation(op.kind)) {
      op.partial = true;
      ++at;
    }
    if (at < word.size()) refuse("an operation is like F0.1: kind, stage, microbatch.", quoted(word));
    return op;
  }

  Kind parse_kind(std::string_view word, std::string_view kind) const {
    for (int k = 0; k < kNumKinds; ++k)
      if (kind == to_string(static_cast<Kind>(k))) return static_cast<Kind>(k);
    refuse("an operation is one of F B I W SA RA SG RG wSA wRA wSG wRG R.", quoted(word));
  }

  const std::string_view text_;
  const std::string& name_;
  Program program_;
  bool has_stages_ = false, has_microbatches_ = false, has_max_live_ = false;
  std::vector<bool> has_rank_;
  std::int64_t num_ops_ = 0;
  std::size_t line_number_ = 0, line_begin_ = 0, line_end_ = 0, word_ = 0, next_ = 0;
};

}  // namespace

std::string to_text(const Program& program) {
  std::string text = "stages";
  for (int stage = 0; stage < program.placement.num_stages(); ++stage)
    text += " " + std::to_string(program.placement.rank_of(stage));
  text += "\nmicrobatches " + std::to_string(program.num_microbatches) + "\n";
  if (program.forward_only) text += "forward-only\n";
  if (!program.max_live.empty()) {
    text += "max-live";
    for (const int bound : program.max_live) text += " " + std::to_string(bound);
    text += '\n';
  }
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    text += "rank " + std::to_string(rank) + ":";
    for (const Op& op : program.ranks[rank]) append(text += ' ', op);
    text += '\n';
  }
  return text;
}

Program parse_program(const std::string& text, const std::string& name) { return Parser(text, name).parse(); }

}  // namespace megatron::schedule
