#include "megatron/serve/grammar/grammar_mask.h"

#include <algorithm>
#include <utility>

namespace megatron::serve {
namespace {

constexpr std::size_t kMostStates = 4096, kMostKept = 1'000'000;  // a state has 1 kB and more
constexpr std::size_t kWorkOfToken = 500'000;                     // what a token may take on average

}  // namespace

GrammarMask::GrammarMask(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                         std::vector<std::int64_t> ends)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      ends_(std::move(ends)),
      automaton_(*grammar_),
      state_(automaton_.start()) {}

const std::vector<bool>& GrammarMask::allowed() {
  allowed_.assign(static_cast<std::size_t>(trie_->vocab()), false);
  if (state_ == GrammarAutomaton::kDead) return allowed_;
  if (automaton_.size() > kMostStates || automaton_.held() > kMostKept) state_ = automaton_.forget_all_but(state_);
  const auto& nodes = trie_->nodes();
  std::vector<std::pair<std::uint32_t, std::int32_t>> open = {
      {0, state_}};  // nodes whose bytes fit, and where they lead
  while (!open.empty()) {
    const auto [at, state] = open.back();
    open.pop_back();
    const TokenTrie::Node& node = nodes[at];
    for (std::uint32_t i = 0; i < node.tokens; ++i)
      allowed_[static_cast<std::size_t>(trie_->tokens()[node.first_token + i])] = true;
    for (std::uint32_t child = node.first_child; child < node.first_child + node.children; ++child) {
      const std::int32_t next = automaton_.next(state, nodes[child].byte);
      if (next != GrammarAutomaton::kDead) open.emplace_back(child, next);
    }
  }
  // An end has a text too where the tokenizer takes it for no special token.
  const bool ends = automaton_.accepts(state_);
  for (const std::int64_t end : ends_)
    if (end < trie_->vocab()) allowed_[static_cast<std::size_t>(end)] = ends;
  return allowed_;
}

void GrammarMask::take(std::int64_t token) {
  if (token < 0 || token >= trie_->vocab() || std::ranges::count(ends_, token) > 0) return;
  automaton_.grant(kWorkOfToken);
  for (const char byte : trie_->bytes(token)) {
    if (state_ == GrammarAutomaton::kDead) return;
    state_ = automaton_.next(state_, static_cast<std::uint8_t>(byte));
  }
}

}  // namespace megatron::serve
