#pragma once
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace megatron::serve {

/// Items of several clients in the order of start-time fair queueing (Goyal et al. 1996): clients that wait get equal
/// shares of what is served, measured by their items' costs, however many items each has; those of one client stay in
/// their order. No client's items fill the queue: `each` of them may wait, `all` in all.
template <class Item>
class FairQueue {
 public:
  FairQueue(std::size_t all, std::size_t each) : all_(all), each_(each) {}

  /// Whether `count` more items of the client may wait.
  bool takes(const std::string& client, std::size_t count) const {
    const auto found = clients_.find(client);
    const std::size_t waiting = found == clients_.end() ? 0 : found->second.waiting;
    return items_.size() + count <= all_ && waiting + count <= each_;
  }

  void push(const std::string& client, double cost, Item item) {
    Client& one = clients_[client];
    const double start = std::max(now_, one.finish);
    one.finish = start + cost;
    ++one.waiting;
    cost_ += cost;
    items_.emplace(std::pair(start, number_++), Entry{client, cost, std::move(item)});
  }

  bool empty() const { return items_.empty(); }
  std::size_t size() const { return items_.size(); }
  /// Of all that wait.
  double cost() const { return cost_; }
  const Item& front() const { return items_.begin()->second.item; }

  Item pop() {
    const auto first = items_.begin();
    now_ = first->first.first;
    return take(first);
  }

  /// Takes out every item for which unwanted(item), in their order.
  template <class Unwanted>
  std::vector<Item> remove(const Unwanted& unwanted) {
    std::vector<Item> removed;
    for (auto at = items_.begin(); at != items_.end();) {
      const auto next = std::next(at);
      if (unwanted(at->second.item)) removed.push_back(take(at));
      at = next;
    }
    return removed;
  }

 private:
  struct Client {
    double finish = 0;  ///< when all that it has asked for would have been served
    std::size_t waiting = 0;
  };
  struct Entry {
    std::string client;
    double cost;
    Item item;
  };
  using Items = std::map<std::pair<double, std::size_t>, Entry>;

  Item take(typename Items::iterator at) {
    Item item = std::move(at->second.item);
    const auto client = clients_.find(at->second.client);
    --client->second.waiting;
    cost_ -= at->second.cost;
    items_.erase(at);
    // Who waits for nothing and was served no more than others is as new. Where that leaves too many, or nobody waits,
    // all who do not wait are as new: the table does not grow with all that ever came.
    const bool all_new = items_.empty() || clients_.size() > 4 * all_;
    std::erase_if(clients_,
                  [&](const auto& one) { return one.second.waiting == 0 && (all_new || one.second.finish <= now_); });
    return item;
  }

  std::size_t all_, each_, number_ = 0;
  double cost_ = 0;
  double now_ = 0;  ///< the start of the item served last
  Items items_;
  std::map<std::string, Client> clients_;
};

}  // namespace megatron::serve
