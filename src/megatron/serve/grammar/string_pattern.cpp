#include "megatron/serve/grammar/string_pattern.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/serve/grammar/json_characters.h"
#include "megatron/serve/grammar/regular_expression.h"

namespace megatron::serve {
namespace {

using Machine = CharacterMachine;

/// The rules of a machine: one for each place of a string where a character may come, which is a state, whether it is
/// the string's start, and how many characters are before it, as far as that counts.
class Strings {
 public:
  Strings(GrammarBuilder& grammar, Machine machine, std::int64_t least, std::int64_t most)
      : grammar_(grammar), machine_(std::move(machine)), least_(least), most_(most) {
    any_ = machine_.sets.size();
    machine_.sets.push_back(characters_of(complement({})));
    // The expression may begin at any character and be followed by any others.
    before_ = machine_.states.size();
    machine_.states.push_back({.free = {{.to = machine_.start}}, .reading = {{.to = before_, .set = any_}}});
    machine_.states[machine_.end].reading.push_back({.to = machine_.end, .set = any_});
    for (const CodePoints& set : machine_.sets) {
      sets_.push_back(grammar_.add_rule());
      add_json_characters(grammar_, sets_.back(), set);
    }
  }

  std::int32_t rule() {
    const std::int32_t inside = rule_of({before_, true, 0});
    while (!open_.empty()) {
      const MatchState place = open_.back();
      open_.pop_back();
      fill(place);
    }
    return grammar_.rule_with({{Grammar::byte('"'), Grammar::rule(inside), Grammar::byte('"')}});
  }

 private:
  struct MatchState {
    std::size_t state = 0;
    bool at_start = false;
    std::int64_t before = 0;
    auto operator<=>(const MatchState&) const = default;
  };

  std::int32_t rule_of(const MatchState& place) {
    const auto [at, added] = rules_.try_emplace(place, 0);
    if (added) {
      at->second = grammar_.add_rule();
      open_.push_back(place);
      grammar_.need_room(rules_.size() * 3);
    }
    return at->second;
  }

  /// Characters before the next place: no more than what tells strings of an allowed length from others.
  std::int64_t counted(std::int64_t before) const {
    return std::min(before + 1, most_ < 0 ? least_ : std::max(least_, most_));
  }

  /// Where the steps from a state lead that read nothing: whether the expression may have been found, and what may be
  /// read then.
  struct Reached {
    bool found = false;
    std::set<std::pair<std::size_t, std::size_t>> steps;  ///< set and next state
  };

  const Reached& reached_from(std::size_t from, bool at_start) {
    const auto [known, added] = reached_.try_emplace({from, at_start});
    Reached& reached = known->second;
    if (!added) return reached;
    // After a step that is for the string's end alone, no character may come.
    std::set<std::pair<std::size_t, bool>> seen;
    std::vector<std::pair<std::size_t, bool>> open = {{from, false}};
    while (!open.empty()) {
      const auto at = open.back();
      open.pop_back();
      if (!seen.insert(at).second) continue;
      const auto& [state, ended] = at;
      grammar_.spend(1 + machine_.states[state].free.size() + machine_.states[state].reading.size());
      reached.found = reached.found || state == machine_.end;
      for (const Machine::FreeStep& step : machine_.states[state].free)
        if (step.when != Machine::Free::AtStart || at_start)
          open.emplace_back(step.to, ended || step.when == Machine::Free::AtEnd);
      if (!ended)
        for (const Machine::ReadingStep& step : machine_.states[state].reading)
          reached.steps.emplace(step.set, step.to);
    }
    return reached;
  }

  void fill(const MatchState& place) {
    const std::int32_t rule = rules_.at(place);
    const Reached& reached = reached_from(place.state, place.at_start);
    if (reached.found && place.before >= least_) grammar_.add(rule, {});
    if (most_ >= 0 && place.before >= most_) return;
    for (const auto& [set, to] : reached.steps)
      grammar_.add(rule, {Grammar::rule(sets_[set]), Grammar::rule(rule_of({to, false, counted(place.before)}))});
  }

  GrammarBuilder& grammar_;
  Machine machine_;
  std::int64_t least_, most_;
  std::size_t any_ = 0, before_ = 0;
  std::vector<std::int32_t> sets_;
  std::map<MatchState, std::int32_t> rules_;
  std::map<std::pair<std::size_t, bool>, Reached> reached_;
  std::vector<MatchState> open_;
};

}  // namespace

std::int32_t add_string_pattern(GrammarBuilder& grammar, std::string_view pattern, std::int64_t least,
                                std::int64_t most) {
  return Strings(grammar, machine_of(pattern), least, most).rule();
}

std::optional<std::string_view> pattern_of_format(std::string_view format) {
  static const std::map<std::string_view, std::string> patterns = [] {
    const std::string date =
        "(?:(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|"
        "11)-(?:0[1-9]|[12]\\d|30)|"
        "02-(?:0[1-9]|1\\d|2[0-8]))|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-"
        "29)";
    const std::string hour = "(?:[01]\\d|2[0-3])";
    const std::string time = hour + ":[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" + hour + ":[0-5]\\d)";
    const auto count = [](const std::string& unit) { return "\\d{1,6}" + unit; };
    const auto then = [&](const std::string& first, const std::string& rest) { return first + "(?:" + rest + ")?"; };
    const std::string minutes = then(count("M"), count("S")), months = then(count("M"), count("D"));
    const std::string clock = "T(?:" + then(count("H"), minutes) + "|" + minutes + "|" + count("S") + ")";
    const std::string days = "(?:" + then(count("Y"), months) + "|" + months + "|" + count("D") + ")";
    const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", mailbox = "[A-Za-z0-9_+-]";
    const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)", hex = "[0-9a-f]";
    return std::map<std::string_view, std::string>{
        {"date", "^" + date + "$"},
        {"time", "^" + time + "$"},
        {"date-time", "^" + date + "T" + time + "$"},
        {"duration", "^P(?:" + count("W") + "|" + then(days, clock) + "|" + clock + ")$"},
        {"email", "^" + mailbox + "{1,32}(?:\\." + mailbox + "{1,31})?@" + label + "(?:\\." + label + "){1,2}$"},
        {"hostname", "^" + label + "(?:\\." + label + "){0,2}$"},
        {"ipv4", "^" + byte + "(?:\\." + byte + "){3}$"},
        {"ipv6", "^(?:" + hex + "{1,4}:){7}" + hex + "{1,4}$"},
        {"uuid", "^" + hex + "{8}-(?:" + hex + "{4}-){3}" + hex + "{12}$"}};
  }();
  const auto at = patterns.find(format);
  return at == patterns.end() ? std::nullopt : std::optional<std::string_view>(at->second);
}

}  // namespace megatron::serve
