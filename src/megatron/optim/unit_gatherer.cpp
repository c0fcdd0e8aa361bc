#include "megatron/optim/unit_gatherer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "megatron/kernels/matmul.h"

namespace megatron::optim {

struct UnitGatherer::Impl {
  static constexpr int kNone = -1;

  struct Bucket {
    comm::Group ranks;
    at::Tensor whole, own;
  };
  struct Unit {
    std::vector<Bucket> buckets;
    std::vector<parallel::ParameterPtr> parameters;
    std::vector<int> overlapping;  // units that have some of its memory
    std::vector<comm::WorkHandle> under_way;
    bool there = false;  // or under way
  };

  const parallel::ParameterStore& store;
  bool overlap;
  std::vector<Unit> units;
  int current = kNone, previous = kNone;  // read last, and before that
  bool looked_ahead = false;              // what comes after `current` has been seen to
  std::vector<int> order;
  std::size_t at = 0;  // in the order
  int next = kNone;    // after the order

  Impl(const parallel::ParameterStore& s, const comm::Group& dp, bool overlaps, const comm::Group& experts)
      : store(s), overlap(overlaps) {
    const plan::ParameterPool& pool = store.pooled_values()->pool;
    for (std::size_t u = 0; u < pool.units.size(); ++u) {
      units.emplace_back();
      for (const int bucket : pool.units[u].buckets) add(units.back(), static_cast<std::size_t>(bucket), dp, experts);
      for (std::size_t other = 0; other < pool.units.size(); ++other)
        if (other != u && !plan::intersection(pool.units[u].memory, pool.units[other].memory).empty())
          units.back().overlapping.push_back(static_cast<int>(other));
    }
    for (std::size_t u = 0; u < pool.units.size(); ++u)
      for (const int bucket : pool.units[u].buckets)
        store.arrival(static_cast<std::size_t>(bucket)).on_read([this, unit = static_cast<int>(u)](bool alone) {
          need(unit, alone);
        });
  }

  void add(Unit& unit, std::size_t bucket, const comm::Group& dp, const comm::Group& experts) const {
    const plan::BufferLayout::Bucket& planned = store.layout().buckets[bucket];
    const plan::Range& world = store.pooled_values()->owned.at(bucket).world;
    unit.buckets.push_back({planned.experts ? experts : dp, store.bucket_values(bucket), store.owned_values(world)});
    for (const int parameter : planned.parameters)
      unit.parameters.push_back(store.all().at(static_cast<std::size_t>(parameter)));
  }

  Unit& unit(int number) { return units[static_cast<std::size_t>(number)]; }

  static void wait(Unit& unit) {
    for (comm::WorkHandle& work : unit.under_way) work->wait();
    unit.under_way.clear();
  }

  /// Starts to gather it, unless it is there.
  void fetch(int number) {
    Unit& own = unit(number);
    if (own.there) return;
    for (const int other : own.overlapping) {
      wait(unit(other));  // who was not read after all
      unit(other).there = false;
    }
    own.there = true;
    for (const Bucket& bucket : own.buckets) {
      own.under_way.push_back(bucket.ranks.all_gather_async(bucket.whole, bucket.own));
      kernels::written_to(bucket.whole);  // by the transport: copies of the parameters are old
    }
  }

  static void release_copies(const Unit& unit) {
    for (const parallel::ParameterPtr& parameter : unit.parameters) parameter->packed.release();
  }

  bool overlaps(int a, int b) {
    const std::vector<int>& others = unit(a).overlapping;
    return std::ranges::find(others, b) != others.end();
  }

  /// What comes after the current unit; kNone where the order does not say.
  int following() {
    const auto found = std::find(order.begin() + static_cast<std::ptrdiff_t>(at), order.end(), current);
    if (found == order.end()) return kNone;
    at = static_cast<std::size_t>(found - order.begin());
    return at + 1 < order.size() ? order[at + 1] : next;
  }

  void look_ahead(bool alone) {
    const int ahead = following();
    looked_ahead = true;
    if (ahead == kNone || unit(ahead).there || overlaps(ahead, current)) return;
    // An operator that also reads the unit before this one may be under way: its memory is not free yet. Nor is it for
    // the next operation's unit: how often this one reads the two by turns may depend on a rank's own samples.
    const bool of_next = at + 1 >= order.size();
    if ((!alone || of_next) && previous != kNone && overlaps(ahead, previous))
      looked_ahead = false;
    else
      fetch(ahead);
  }

  void need(int number, bool alone) {
    if (number == current && looked_ahead) return;
    if (number != current) {
      if (previous != kNone && previous != number) release_copies(unit(previous));
      previous = std::exchange(current, number);
      looked_ahead = !overlap;
      fetch(number);
    }
    if (!looked_ahead) look_ahead(alone);
    wait(unit(number));
  }
};

UnitGatherer::UnitGatherer(const parallel::ParameterStore& store, comm::Group dp, bool overlap, comm::Group experts)
    : impl_(std::make_unique<Impl>(store, std::move(dp), overlap, std::move(experts))) {}

UnitGatherer::~UnitGatherer() {
  for (std::size_t b = 0; b < impl_->store.layout().buckets.size(); ++b) impl_->store.arrival(b).on_read(nullptr);
}

void UnitGatherer::begin(const std::vector<int>& order, int next) {
  impl_->order = order;
  impl_->at = 0;
  impl_->next = next;
  impl_->looked_ahead = !impl_->overlap;
}

void UnitGatherer::settle() {
  impl_->order.clear();
  impl_->next = Impl::kNone;
  for (Impl::Unit& unit : impl_->units) Impl::wait(unit);
}

void UnitGatherer::forget() {
  settle();
  for (Impl::Unit& unit : impl_->units) {
    unit.there = false;
    Impl::release_copies(unit);
  }
  // What a rank owns whole was written where it lies: copies of it are old too.
  const std::vector<std::int64_t>& begin = impl_->store.pooled_values()->pool.begin;
  for (std::size_t b = 0; b < begin.size(); ++b)
    if (begin[b] == plan::ParameterPool::kOwned) kernels::written_to(impl_->store.bucket_values(b));
  impl_->current = impl_->previous = Impl::kNone;
  impl_->looked_ahead = false;
}

}  // namespace megatron::optim
