#include "megatron/generate/serving/block_pool.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::generate {

std::vector<std::int64_t> BlockPool::Prefix::blocks() const {
  std::vector<std::int64_t> all;
  for (const Prefix* one = this; one != nullptr; one = one->parent_)
    all.insert(all.begin(), one->own_blocks_.begin(), one->own_blocks_.end());
  return all;
}

BlockPool::BlockPool(std::int64_t blocks, std::int64_t block_tokens, std::int64_t unit_tokens)
    : size_(blocks), block_tokens_(block_tokens), unit_blocks_(unit_tokens / block_tokens) {
  if (unit_tokens < block_tokens || unit_tokens % block_tokens != 0)
    throw std::logic_error(concat("units of ", unit_tokens, " tokens are not whole blocks of ", block_tokens));
  for (std::int64_t block = blocks; block-- > 0;) free_.push_back(block);  // the first goes first
}

std::vector<std::int64_t> BlockPool::take(std::int64_t count) {
  if (!has(count)) throw std::logic_error(concat("a pool has not as many blocks as ", count));
  while (free() < count) drop_oldest();
  std::vector<std::int64_t> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - blocks.size());
  return blocks;
}

void BlockPool::give_back(std::span<const std::int64_t> blocks) {
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
}

// The one released longest ago has no children: they are released before their parent is.
void BlockPool::drop_oldest() {
  Prefix* const oldest = kept_.begin()->second;
  kept_.erase(kept_.begin());
  give_back(oldest->own_blocks_);
  auto& siblings = oldest->parent_->children_;
  siblings.erase(siblings.find(*oldest->key_));
}

BlockPool::Prefix* BlockPool::find(std::span<const std::int64_t> tokens, std::int64_t adapter) {
  Prefix* found = &roots_[adapter];
  const auto unit = static_cast<std::size_t>(unit_tokens());
  for (; tokens.size() >= unit; tokens = tokens.subspan(unit)) {
    const auto first = tokens.first(unit);
    const auto child = found->children_.find(std::vector<std::int64_t>(first.begin(), first.end()));
    if (child == found->children_.end()) break;
    found = child->second.get();
  }
  return found->parent_ == nullptr ? nullptr : found;
}

void BlockPool::hold(Prefix* prefix) {
  for (; prefix != nullptr && prefix->parent_ != nullptr; prefix = prefix->parent_)
    if (prefix->holders_++ == 0) kept_.erase(prefix->released_);
}

void BlockPool::release(Prefix* prefix) {
  for (; prefix != nullptr && prefix->parent_ != nullptr; prefix = prefix->parent_) {
    if (--prefix->holders_ > 0) continue;
    prefix->released_ = ++clock_;
    kept_.emplace(prefix->released_, prefix);
  }
}

BlockPool::Prefix* BlockPool::add(Prefix* held, std::span<const std::int64_t> unit,
                                  std::span<const std::int64_t> blocks, std::int64_t adapter) {
  Prefix* const parent = held == nullptr ? &roots_[adapter] : held;
  const auto [place, added] = parent->children_.try_emplace(std::vector<std::int64_t>(unit.begin(), unit.end()));
  if (!added) return nullptr;
  place->second = std::make_unique<Prefix>();
  Prefix* const prefix = place->second.get();
  prefix->parent_ = parent;
  prefix->key_ = &place->first;
  prefix->own_blocks_.assign(blocks.begin(), blocks.end());
  prefix->units_ = parent->units_ + 1;
  prefix->holders_ = 1;  // which holds those above it already
  return prefix;
}

}  // namespace megatron::generate
