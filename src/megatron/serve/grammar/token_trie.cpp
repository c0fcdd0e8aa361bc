#include "megatron/serve/grammar/token_trie.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "megatron/text/vocabulary.h"

namespace megatron::serve {

TokenTrie::TokenTrie(const text::Tokenizer& tokenizer, std::int64_t vocab) : bytes_(static_cast<std::size_t>(vocab)) {
  std::set<std::int32_t> special;
  for (const text::SpecialToken& token : tokenizer.vocabulary().specials)
    if (token.special) special.insert(token.id);
  // After some text: a first token may lose the space before it. A token may be a part of a character.
  std::vector<std::int32_t> ids = tokenizer.encode("x");
  const std::string before = tokenizer.decode(ids);
  ids.push_back(0);
  for (std::int32_t id = 0; id < std::min<std::int64_t>(vocab, tokenizer.vocab_size()); ++id)
    if (std::string& bytes = bytes_[static_cast<std::size_t>(id)]; special.contains(id)) {
      bytes = kSpecialTokenMark + std::string(tokenizer.id_to_bytes(id));
    } else {
      ids.back() = id;
      const std::string whole = tokenizer.decode(ids);
      if (whole.starts_with(before)) bytes = whole.substr(before.size());
      if (bytes.find(kSpecialTokenMark) != std::string::npos) bytes.clear();
    }
  build();
}

TokenTrie::TokenTrie(const std::vector<std::string>& tokens) : bytes_(tokens) { build(); }

std::string TokenTrie::spelled(std::string_view text) const {
  std::string special = kSpecialTokenMark + std::string(text);
  return std::ranges::find(bytes_, special) != bytes_.end() ? special : std::string(text);
}

void TokenTrie::build() {
  std::vector<std::int32_t> order;
  for (std::size_t id = 0; id < bytes_.size(); ++id)
    if (!bytes_[id].empty()) order.push_back(static_cast<std::int32_t>(id));
  const auto text = [&](std::int32_t id) -> const std::string& { return bytes_[static_cast<std::size_t>(id)]; };
  std::ranges::sort(order,
                    [&](std::int32_t a, std::int32_t b) { return std::pair(text(a), a) < std::pair(text(b), b); });
  // Breadth first, so that children lie together. A node is a range of the sorted tokens that begin alike.
  struct Range {
    std::size_t node, begin, end, depth;
  };
  nodes_.emplace_back();
  std::deque<Range> open = {{0, 0, order.size(), 0}};
  while (!open.empty()) {
    const Range range = open.front();
    open.pop_front();
    std::size_t at = range.begin;
    nodes_[range.node].first_token = static_cast<std::uint32_t>(tokens_.size());
    for (; at < range.end && text(order[at]).size() == range.depth; ++at) tokens_.push_back(order[at]);
    nodes_[range.node].tokens = static_cast<std::uint32_t>(tokens_.size()) - nodes_[range.node].first_token;
    nodes_[range.node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (at < range.end) {
      const char byte = text(order[at])[range.depth];
      std::size_t end = at;
      while (end < range.end && text(order[end])[range.depth] == byte) ++end;
      open.push_back({nodes_.size(), at, end, range.depth + 1});
      nodes_.push_back({.byte = static_cast<std::uint8_t>(byte)});
      ++nodes_[range.node].children;
      at = end;
    }
  }
}

}  // namespace megatron::serve
