#pragma once
#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace megatron::serve {

using ByteSet = std::bitset<256>;

/// A context-free grammar over bytes, without left recursion. Rules are numbers; the first is where texts begin.
class Grammar {
 public:
  struct Symbol {
    bool is_rule = false;
    std::int32_t rule = 0;
    ByteSet bytes = {};  ///< one of these, where it is no rule
  };
  using Sequence = std::vector<Symbol>;

  /// A rule without alternatives, which matches nothing.
  std::int32_t add_rule();
  void add(std::int32_t rule, const Sequence& alternative);
  /// Symbols of all rules: what it takes in memory.
  std::size_t size() const { return symbols_.size(); }

  /// Whether a rule can begin with itself: no automaton can be made of such.
  bool left_recursive() const;

  /// Leaves out the alternatives that no finite text matches, so that none leads where a text cannot end. Returns
  /// whether any text is left.
  bool leave_out_endless();

  static Symbol rule(std::int32_t number) { return {.is_rule = true, .rule = number}; }
  static Symbol bytes(const ByteSet& set) { return {.is_rule = false, .rule = 0, .bytes = set}; }
  static Symbol byte(char c);

  // As the matcher walks it: places in one list, each alternative followed by an end.
  enum class Kind : std::uint8_t { Bytes, Rule, End };
  struct Node {
    Kind kind = Kind::End;
    std::int32_t rule = 0;  ///< or the number of the set
  };
  const Node& at(std::uint32_t place) const { return symbols_[place]; }
  const ByteSet& set(const Node& place) const { return sets_[static_cast<std::size_t>(place.rule)]; }
  const std::vector<std::uint32_t>& alternatives(std::int32_t rule) const {
    return rules_[static_cast<std::size_t>(rule)];
  }

 private:
  std::vector<std::vector<std::uint32_t>> rules_;  ///< where each alternative begins
  std::vector<Node> symbols_;
  std::vector<ByteSet> sets_;
};

/// Where texts of a grammar may be, as the states of an automaton that grows as they are met: each is the set of all
/// that may follow. States are numbers; kDead: nothing may.
class GrammarAutomaton {
 public:
  static constexpr std::int32_t kDead = -1;

  /// The grammar must outlive this.
  explicit GrammarAutomaton(const Grammar& grammar);
  GrammarAutomaton(const GrammarAutomaton&) = delete;
  GrammarAutomaton& operator=(const GrammarAutomaton&) = delete;

  std::int32_t start() const { return 0; }
  /// Throws ApiError 400 where so much may follow that finding it out takes too much time or memory: a grammar can make
  /// what may follow double with each byte. The constructor does too.
  std::int32_t next(std::int32_t state, std::uint8_t byte);
  /// Whether the text may end here.
  bool accepts(std::int32_t state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  std::size_t size() const { return states_.size(); }
  /// What the states take in memory beside their number: their stacks and the places in them.
  std::size_t held() const { return held_; }
  /// Allows as many more places to be looked at, up to what is allowed at first. What has been allowed is for a text as
  /// long as it is; who writes a long one asks again with each of its tokens.
  void grant(std::size_t work) { work_ -= std::min(work_, work); }
  /// Forgets all states but `kept`, whose new number it returns: beside the start's it is 1, or 0 where it is the
  /// start.
  std::int32_t forget_all_but(std::int32_t kept);

 private:
  using Stack = std::vector<std::uint32_t>;  ///< places that are still to come, the next one last
  using Stacks = std::vector<Stack>;         ///< sorted, each with bytes at its end; an empty one: the end
  static constexpr std::int32_t kUnknown = -2;

  struct State {
    const Stacks* stacks = nullptr;  ///< a key of numbers_
    std::vector<std::int32_t> next;  ///< of each byte
    bool accepts = false;
  };

  void spend(std::size_t work);
  void expand(Stack stack, Stacks& out);
  std::int32_t number_of(Stacks stacks);

  const Grammar& grammar_;
  std::vector<State> states_;
  std::map<Stacks, std::int32_t> numbers_;
  std::size_t work_ = 0;  ///< places that were looked at, less those that were granted
  std::size_t held_ = 0;
};

}  // namespace megatron::serve
