#include "megatron/serve/grammar/grammar.h"

#include <algorithm>
#include <set>
#include <utility>

#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

constexpr std::size_t kMostWork = 20'000'000, kMostStacks = 4096;  // a second
constexpr std::size_t kMostHeld = 4'000'000;                       // some 100 MB

[[noreturn]] void refuse() {
  throw ApiError(400, "the schema lets too much follow: say less of it by anyOf", "response_format",
                 "invalid_json_schema");
}

}  // namespace

Grammar::Symbol Grammar::byte(char c) {
  ByteSet set;
  set.set(static_cast<unsigned char>(c));
  return bytes(set);
}

std::int32_t Grammar::add_rule() {
  rules_.emplace_back();
  return static_cast<std::int32_t>(rules_.size()) - 1;
}

void Grammar::add(std::int32_t rule, const Sequence& alternative) {
  rules_[static_cast<std::size_t>(rule)].push_back(static_cast<std::uint32_t>(symbols_.size()));
  for (const Symbol& symbol : alternative) {
    if (symbol.is_rule) {
      symbols_.push_back({Kind::Rule, symbol.rule});
      continue;
    }
    symbols_.push_back({Kind::Bytes, static_cast<std::int32_t>(sets_.size())});
    sets_.push_back(symbol.bytes);
  }
  symbols_.push_back({Kind::End, 0});
}

bool Grammar::left_recursive() const {
  // Rules that may be empty, until there are no more.
  std::vector<bool> empty(rules_.size());
  const auto may_be_empty = [&](std::uint32_t place) {
    for (; symbols_[place].kind != Kind::End; ++place)
      if (symbols_[place].kind == Kind::Bytes || !empty[static_cast<std::size_t>(symbols_[place].rule)]) return false;
    return true;
  };
  for (bool more = true; more;) {
    more = false;
    for (std::size_t rule = rules_.size();
         rule-- > 0;)  // what a rule is made of has mostly higher numbers or is before
      if (!empty[rule] && std::ranges::any_of(rules_[rule], may_be_empty)) empty[rule] = more = true;
  }
  // Whether a rule can begin with itself: taken away, one after another, are those that nothing begins with any more.
  std::vector<std::vector<std::size_t>> begins(rules_.size());
  std::vector<std::size_t> uses(rules_.size());
  for (std::size_t rule = 0; rule < rules_.size(); ++rule)
    for (std::uint32_t place : rules_[rule])
      for (; symbols_[place].kind == Kind::Rule; ++place) {
        const auto inner = static_cast<std::size_t>(symbols_[place].rule);
        begins[rule].push_back(inner);
        ++uses[inner];
        if (!empty[inner]) break;
      }
  std::vector<std::size_t> free;
  for (std::size_t rule = 0; rule < rules_.size(); ++rule)
    if (uses[rule] == 0) free.push_back(rule);
  std::size_t taken = 0;
  for (; !free.empty(); ++taken) {
    const std::size_t rule = free.back();
    free.pop_back();
    for (const std::size_t inner : begins[rule])
      if (--uses[inner] == 0) free.push_back(inner);
  }
  return taken < rules_.size();
}

bool Grammar::leave_out_endless() {
  // How many rules each alternative waits for that are not known to end, and who waits for a rule.
  struct Alternative {
    std::size_t rule = 0, waits = 0;
    std::uint32_t place = 0;
  };
  std::vector<Alternative> all;
  std::vector<std::vector<std::size_t>> waiting(rules_.size());
  std::vector<bool> ends(rules_.size());
  std::vector<std::size_t> open;
  const auto judge = [&](const Alternative& one) {
    if (one.waits > 0 || ends[one.rule]) return;
    ends[one.rule] = true;
    open.push_back(one.rule);
  };
  for (std::size_t rule = 0; rule < rules_.size(); ++rule)
    for (const std::uint32_t begin : rules_[rule]) {
      all.push_back({.rule = rule, .place = begin});
      for (std::uint32_t place = begin; symbols_[place].kind != Kind::End; ++place)
        if (symbols_[place].kind == Kind::Rule) {
          waiting[static_cast<std::size_t>(symbols_[place].rule)].push_back(all.size() - 1);
          ++all.back().waits;
        }
      judge(all.back());
    }
  while (!open.empty()) {
    const std::size_t rule = open.back();
    open.pop_back();
    for (const std::size_t number : waiting[rule]) {
      --all[number].waits;
      judge(all[number]);
    }
  }
  for (std::vector<std::uint32_t>& alternatives : rules_) alternatives.clear();
  for (const Alternative& one : all)
    if (one.waits == 0) rules_[one.rule].push_back(one.place);
  return ends[0];
}

GrammarAutomaton::GrammarAutomaton(const Grammar& grammar) : grammar_(grammar) {
  Stacks stacks;
  for (const std::uint32_t place : grammar_.alternatives(0)) expand({place}, stacks);
  number_of(std::move(stacks));
}

void GrammarAutomaton::spend(std::size_t work) {
  if ((work_ += work) > kMostWork) refuse();
}

void GrammarAutomaton::expand(Stack begin, Stacks& out) {
  Stacks open = {std::move(begin)};
  std::set<Stack> seen;
  while (!open.empty()) {
    Stack stack = std::move(open.back());
    open.pop_back();
    while (!stack.empty() && grammar_.at(stack.back()).kind == Grammar::Kind::End) stack.pop_back();
    if (!seen.insert(stack).second) continue;
    spend(1 + stack.size());
    if (out.size() > kMostStacks) refuse();
    if (stack.empty() || grammar_.at(stack.back()).kind == Grammar::Kind::Bytes) {
      out.push_back(std::move(stack));
      continue;
    }
    const std::int32_t rule = grammar_.at(stack.back()).rule;
    // What is last in its sequence is not come back to: lists do not grow the stack.
    ++stack.back();
    if (grammar_.at(stack.back()).kind == Grammar::Kind::End) stack.pop_back();
    for (const std::uint32_t place : grammar_.alternatives(rule)) {
      open.push_back(stack);
      open.back().push_back(place);
    }
  }
}

std::int32_t GrammarAutomaton::number_of(Stacks stacks) {
  std::ranges::sort(stacks);
  const auto same = std::ranges::unique(stacks);
  stacks.erase(same.begin(), same.end());
  if (stacks.empty()) return kDead;
  const auto [found, is_new] = numbers_.emplace(std::move(stacks), static_cast<std::int32_t>(states_.size()));
  if (is_new) {
    const Stacks& its = found->first;
    states_.push_back({&its, std::vector<std::int32_t>(256, kUnknown), its.front().empty()});
    for (const Stack& stack : its) held_ += 1 + stack.size();
    if (held_ > kMostHeld) refuse();
  }
  return found->second;
}

std::int32_t GrammarAutomaton::next(std::int32_t state, std::uint8_t byte) {
  const auto at = static_cast<std::size_t>(state);
  if (const std::int32_t known = states_[at].next[byte]; known != kUnknown) return known;
  Stacks stacks;
  spend(states_[at].stacks->size());
  for (const Stack& stack : *states_[at].stacks) {
    if (stack.empty() || !grammar_.set(grammar_.at(stack.back())).test(byte)) continue;
    Stack after = stack;
    ++after.back();
    expand(std::move(after), stacks);
  }
  const std::int32_t number = number_of(std::move(stacks));
  states_[at].next[byte] = number;
  return number;
}

std::int32_t GrammarAutomaton::forget_all_but(std::int32_t kept) {
  Stacks first = *states_[0].stacks, stacks = *states_[static_cast<std::size_t>(kept)].stacks;
  states_.clear();
  numbers_.clear();
  held_ = 0;
  number_of(std::move(first));
  return number_of(std::move(stacks));
}

}  // namespace megatron::serve
