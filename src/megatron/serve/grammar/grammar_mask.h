#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/serve/grammar/grammar.h"
#include "megatron/serve/grammar/token_trie.h"
#include "megatron/serve/task.h"

namespace megatron::serve {

/// The tokens that keep a text within a grammar, and its ends where it may end. One for each text. Its constructor and
/// members throw ApiError 400 as GrammarAutomaton does.
class GrammarMask : public TokenMask {
 public:
  GrammarMask(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
              std::vector<std::int64_t> ends);

  const std::vector<bool>& allowed() override;
  void take(std::int64_t token) override;
  /// Whether the text may end here.
  bool complete() const { return state_ != GrammarAutomaton::kDead && automaton_.accepts(state_); }

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::int64_t> ends_;
  GrammarAutomaton automaton_;
  std::int32_t state_;
  std::vector<bool> allowed_;
};

}  // namespace megatron::serve
