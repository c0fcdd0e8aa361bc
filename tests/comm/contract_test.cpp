#include "contract.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/processes/launch.h"
#include "megatron/comm/threads/local_backend.h"

namespace megatron::comm::contract {
namespace {

using std::chrono::seconds;

const std::vector<at::ScalarType> kNumbers = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kByte,
                                              at::kChar,  at::kShort,  at::kInt,      at::kLong};
const std::vector<std::int64_t> kSizes = {0, 1, 1001, 70001};

/// Small numbers that depend on rank and place; sums over 8 ranks are exact in every type.
constexpr std::int64_t kPeriod = 5;
std::int64_t value(int rank, std::int64_t i) { return (rank * 7 + i * 3) % kPeriod; }

at::Tensor numbers(int rank, std::int64_t size, at::ScalarType dtype) {
  return at::arange(size, at::kLong).mul_(3).add_(rank * 7).remainder_(kPeriod).to(dtype);
}

at::Tensor reduced(int ranks, std::int64_t size, at::ScalarType dtype, ReduceOp op) {
  const at::Tensor period = at::zeros({kPeriod}, at::kLong);
  std::int64_t* p = period.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < kPeriod; ++i)
    for (int r = 0; r < ranks; ++r) p[i] = op == ReduceOp::Sum ? p[i] + value(r, i) : std::max(p[i], value(r, i));
  return period.repeat({size / kPeriod + 1}).narrow(0, 0, size).to(dtype);
}

void all_reduce_sums_every_type_and_size(const Group& g) {
  for (const auto dtype : kNumbers)
    for (const std::int64_t size : kSizes)
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max}) {
        at::Tensor t = numbers(g.rank(), size, dtype), u = t.clone();
        g.all_reduce(t, op);
        REQUIRE_THAT(t.equal(reduced(g.size(), size, dtype, op)), c10::toString(dtype), " size ", size);
        if (size == 70001) continue;
        const WorkHandle handle = g.all_reduce_async(u, op);
        handle->wait();
        handle->wait();
        REQUIRE_THAT(u.equal(t), "async ", c10::toString(dtype), " size ", size);
      }
  at::Tensor any = at::zeros({3}, at::kBool);
  if (g.rank() == g.size() - 1) any.select(0, 1).fill_(true);
  g.all_reduce(any);
  REQUIRE_THAT(any.to(at::kLong).equal(at::arange(3).eq(1).to(at::kLong)), "bool");
}

void all_gather_concatenates_in_rank_order(const Group& g) {
  for (const auto dtype : kNumbers)
    for (const std::int64_t dim : {0, 1, -1}) {
      std::vector<at::Tensor> all;
      for (int r = 0; r < g.size(); ++r) all.push_back(numbers(r, 30, dtype).view({2, 3, 5}));
      const at::Tensor got = g.all_gather(all[static_cast<std::size_t>(g.rank())], dim);
      REQUIRE_THAT(got.equal(at::cat(all, dim)), c10::toString(dtype), " dim ", dim);
    }
  const at::Tensor mine = numbers(g.rank(), 12, at::kFloat).view({3, 4}).t();  // not contiguous
  const at::Tensor got = g.all_gather(mine, 1);
  REQUIRE_THAT(got.narrow(1, g.rank() * 3, 3).equal(mine), "");
  REQUIRE_THAT(g.all_gather(at::full({1}, g.rank(), at::kLong)).equal(at::arange(g.size())), "");
  const at::Tensor out = at::empty({g.size() * 70001}, at::kInt), in = numbers(g.rank(), 70001, at::kInt);
  g.all_gather_async(out, in)->wait();
  for (int r = 0; r < g.size(); ++r)
    REQUIRE_THAT(out.narrow(0, r * 70001, 70001).equal(numbers(r, 70001, at::kInt)), "part ", r);
}

void reduce_scatter_keeps_the_own_part_of_the_sum(const Group& g) {
  const std::int64_t n = g.size();
  for (const auto dtype : kNumbers)
    for (const std::int64_t part : {1, 3, 4099}) {
      const at::Tensor full = numbers(g.rank(), part * n, dtype),
                       truth = reduced(g.size(), part * n, dtype, ReduceOp::Sum);
      REQUIRE_THAT(g.reduce_scatter(full).equal(truth.narrow(0, g.rank() * part, part)), c10::toString(dtype));
      REQUIRE_THAT(full.equal(numbers(g.rank(), part * n, dtype)), "the input is kept");
    }
  const at::Tensor full = numbers(g.rank(), 3 * 2 * n, at::kFloat).view({3, 2 * n});
  const at::Tensor truth = reduced(g.size(), 3 * 2 * n, at::kFloat, ReduceOp::Max).view({3, 2 * n});
  REQUIRE_THAT(g.reduce_scatter(full, -1, ReduceOp::Max).equal(truth.narrow(1, g.rank() * 2, 2)), "last dimension");
}

void parts_of_one_buffer_are_reduced_and_gathered_where_they_lie(const Group& g) {
  for (const auto dtype : kNumbers)
    for (const std::int64_t part : {1, 3, 4099, 70001}) {
      const at::Tensor buffer = numbers(g.rank(), part * g.size(), dtype);
      const at::Tensor own = buffer.narrow(0, g.rank() * part, part);
      g.reduce_scatter_async(own, buffer)->wait();
      const at::Tensor truth = reduced(g.size(), part * g.size(), dtype, ReduceOp::Sum);
      REQUIRE_THAT(own.equal(truth.narrow(0, g.rank() * part, part)), c10::toString(dtype), " sum");
      g.all_gather_async(buffer, own)->wait();
      REQUIRE_THAT(buffer.equal(truth), c10::toString(dtype), " gathered");
    }
}

void broadcast_sends_the_roots_tensor(const Group& g) {
  for (int root = 0; root < g.size(); ++root)
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool})
      for (const std::int64_t size : kSizes) {
        const at::Tensor t = numbers(g.rank(), size, dtype);
        g.broadcast(t, root);
        REQUIRE_THAT(t.equal(numbers(root, size, dtype)), "root ", root, " size ", size);
      }
}

void all_to_all_transposes_ranks_and_parts(const Group& g) {
  for (const std::int64_t part : {1, 7, 5000}) {
    const std::int64_t n = g.size();
    const at::Tensor got = g.all_to_all(numbers(g.rank(), n * part, at::kHalf).view({n, part}));
    for (int r = 0; r < g.size(); ++r)
      REQUIRE_THAT(got[r].equal(numbers(r, n * part, at::kHalf).narrow(0, g.rank() * part, part)), "from rank ", r);
  }
}

/// What every transport promises of messages, those without tags included: between two ranks they arrive in the order
/// in which they are sent, whole, in each type, waited for at once or later.
void messages_of_two_ranks_arrive_in_order(const Group& g) {
  const std::vector<at::ScalarType> types = {at::kFloat, at::kBFloat16, at::kLong, at::kByte};
  const auto message = [&](int from, int to, std::size_t i) {
    return numbers(from + 3 * to + static_cast<int>(i), kSizes[1 + i % 3], types[i % types.size()]);
  };
  constexpr std::size_t kMany = 12;
  const auto send_all = [&](int to, bool later) {
    std::vector<WorkHandle> handles;
    for (std::size_t i = 0; i < kMany; ++i) {
      if (later)
        handles.push_back(g.send_async(message(g.rank(), to, i), to));
      else
        g.send(message(g.rank(), to, i), to);
    }
    for (const auto& handle : handles) handle->wait();
  };
  const auto recv_all = [&](int from, bool later) {
    std::vector<at::Tensor> got;
    std::vector<WorkHandle> handles;
    for (std::size_t i = 0; i < kMany; ++i) {
      got.push_back(at::zeros_like(message(from, g.rank(), i)));
      if (later)
        handles.push_back(g.recv_async(got.back(), from));
      else
        g.recv(got.back(), from);
    }
    for (const auto& handle : handles) handle->wait();
    for (std::size_t i = 0; i < kMany; ++i)
      REQUIRE_THAT(got[i].equal(message(from, g.rank(), i)), "message ", i, " from rank ", from);
  };
  for (const bool later : {false, true})
    for (int low = 0; low < g.size(); ++low)
      for (int high = low + 1; high < g.size(); ++high) {
        if (g.rank() == low) {
          send_all(high, later);
          recv_all(high, !later);
        } else if (g.rank() == high) {
          recv_all(low, later);
          send_all(low, !later);
        }
      }
}

void send_and_recv_match_by_source_and_tag(const Group& g) {
  // NCCL knows no tags and runs a rank's messages in order: what it promises is in the clause above. Rings of messages
  // are for a grouped call, which we have not.
  if (g.size() == 1 || g.backend()->name() == "nccl") return;
  const int next = (g.rank() + 1) % g.size(), before = (g.rank() + g.size() - 1) % g.size();
  for (const bool recv_first : {true, false})
    for (const std::int64_t size : {1, 3, 70001}) {
      const at::Tensor mine = numbers(g.rank(), size, at::kFloat), other = mine.add(100), a = at::zeros_like(mine),
                       b = at::zeros_like(mine);
      std::vector<WorkHandle> handles;
      const auto send = [&] {
        handles.push_back(g.send_async(mine, next, 1));
        handles.push_back(g.send_async(other, next, 2));
      };
      if (!recv_first) send();
      handles.push_back(g.recv_async(b, before, 2));  // in another order than they are sent
      handles.push_back(g.recv_async(a, before, 1));
      if (recv_first) send();
      for (const auto& handle : handles) handle->wait();
      REQUIRE_THAT(a.equal(numbers(before, size, at::kFloat)), "size ", size);
      REQUIRE_THAT(b.equal(a.add(100)), "size ", size);
    }
  at::Tensor token = at::full({2}, 41, at::kLong);  // once around the ring, blocking
  if (g.rank() == 0) {
    g.send(token, next);
    g.recv(token, before);
  } else {
    g.recv(token, before);
    g.send(token.add_(1), next);
  }
  REQUIRE_THAT(token[0].item<std::int64_t>() == 41 + (g.rank() == 0 ? g.size() - 1 : g.rank()), "");
  const at::Tensor twice = at::zeros({2}, at::kLong);  // two of one tag arrive in order
  const WorkHandle first = g.send_async(at::full({1}, 1, at::kLong), next, 5);
  const WorkHandle second = g.send_async(at::full({1}, 2, at::kLong), next, 5);
  g.recv(twice.narrow(0, 0, 1), before, 5);
  g.recv(twice.narrow(0, 1, 1), before, 5);
  REQUIRE_THAT(twice.equal(at::arange(1, 3)), "");
}

void handles_are_waited_for_in_any_order(const Group& g) {
  constexpr int kMany = 40;
  std::vector<at::Tensor> tensors;
  std::vector<WorkHandle> handles;
  for (int i = 0; i < kMany; ++i) {
    tensors.push_back(numbers(g.rank() + i, 100 + 997 * i, at::kFloat));
    handles.push_back(i % 3 == 2 ? g.broadcast_async(tensors.back(), i % g.size())
                                 : g.all_reduce_async(tensors.back()));
  }
  std::vector<int> order(kMany);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(g.rank())));  // another on each rank
  for (const int i : order) {
    handles[static_cast<std::size_t>(i)]->wait();
    const at::Tensor& t = tensors[static_cast<std::size_t>(i)];
    at::Tensor truth = numbers(i % g.size() + i, 100 + 997 * i, at::kFloat);
    if (i % 3 != 2) {
      truth.zero_();
      for (int r = 0; r < g.size(); ++r) truth += numbers(r + i, 100 + 997 * i, at::kFloat);
    }
    REQUIRE_THAT(t.equal(truth), "operation ", i);
  }
}

void an_unwaited_handle_completes_when_it_is_dropped(const Group& g) {
  const at::Tensor t = numbers(g.rank(), 5000, at::kFloat);
  g.all_reduce_async(t);
  REQUIRE_THAT(t.equal(reduced(g.size(), 5000, at::kFloat, ReduceOp::Sum)), "");
}

void split_groups_talk_among_themselves(const Group& g) {
  std::vector<std::vector<int>> by_parity, singles, halves;
  for (int r = 0; r < g.size(); ++r) {
    if (r < 2) by_parity.emplace_back();
    by_parity[static_cast<std::size_t>(r % 2)].push_back(r);
    singles.push_back({r});
    if (r == 0 || r == (g.size() + 1) / 2) halves.emplace_back();
    halves.back().push_back(r);
  }
  const Group parity = g.split(by_parity), alone = g.split(singles), half = g.split(halves);
  REQUIRE_THAT(alone.size() == 1 && alone.rank() == 0, "");
  REQUIRE_THAT(parity.rank() == g.rank() / 2, "");
  for (const auto& [group, sets] : {std::pair{parity, by_parity}, {half, halves}}) {
    const auto& mine = *std::find_if(sets.begin(), sets.end(),
                                     [&](const auto& s) { return std::find(s.begin(), s.end(), g.rank()) != s.end(); });
    REQUIRE_THAT(group.size() == static_cast<int>(mine.size()), "");
    const at::Tensor names = group.all_gather(at::full({1}, g.rank(), at::kInt));
    for (std::size_t i = 0; i < mine.size(); ++i)
      REQUIRE_THAT(names[static_cast<std::int64_t>(i)].item<int>() == mine[i], "");
  }
  // A group of a group: its first rank, and the rest.
  std::vector<std::vector<int>> inner{{0}};
  if (parity.size() > 1) inner.emplace_back(static_cast<std::size_t>(parity.size() - 1));
  if (parity.size() > 1) std::iota(inner[1].begin(), inner[1].end(), 1);
  const Group small = parity.split(inner);
  const at::Tensor count = at::full({1}, 1, at::kInt);
  small.all_reduce(count);
  g.barrier();
  REQUIRE_THAT(small.size() == (parity.rank() == 0 ? 1 : parity.size() - 1), "");
  REQUIRE_THAT(count.item<int>() == small.size(), "");
}

void scalars_are_summed_in_double_in_rank_order(const Group& g) {
  const auto mine = [](int r) { return std::vector<double>{0.1 * (r + 1), 1e16 / (r + 1), -3.0 * r}; };
  std::vector<double> truth = mine(0), greatest = mine(0);
  for (int r = 1; r < g.size(); ++r)
    for (std::size_t i = 0; i < 3; ++i) {
      truth[i] += mine(r)[i];
      greatest[i] = std::max(greatest[i], mine(r)[i]);
    }
  REQUIRE_THAT(g.all_reduce_scalars(mine(g.rank())) == truth, "");
  REQUIRE_THAT(g.all_reduce_scalars(mine(g.rank()), ReduceOp::Max) == greatest, "");
  REQUIRE_THAT(g.all_reduce_scalars({}).empty(), "");
}

void sums_have_the_same_bits_on_all_ranks_and_every_time(const Group& g) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor mine = numbers(g.rank(), 100003, at::kDouble).add_(0.3).pow_(1.7 + g.rank()).to(dtype);
    const at::Tensor first = mine.clone(), again = mine.clone();
    g.all_reduce(first);
    g.all_reduce(again);
    REQUIRE_THAT(first.equal(again), c10::toString(dtype));
    const at::Tensor all = g.all_gather(first.view({1, -1}));
    for (int r = 0; r < g.size(); ++r) REQUIRE_THAT(all[r].equal(first), c10::toString(dtype), " rank ", r);
  }
}

void barriers_and_other_collectives_keep_their_order(const Group& g) {
  for (int i = 0; i < 20; ++i) {
    const at::Tensor t = at::full({1}, 1, at::kInt);
    const WorkHandle handle = g.all_reduce_async(t);
    g.barrier();
    handle->wait();
    REQUIRE_THAT(t.item<int>() == g.size(), "");
  }
}

}  // namespace

const std::vector<Clause>& clauses() {
  static const std::vector<Clause> all = {
      {"AllReduceSumsEveryTypeAndSize", all_reduce_sums_every_type_and_size},
      {"AllGatherConcatenatesInRankOrder", all_gather_concatenates_in_rank_order},
      {"ReduceScatterKeepsTheOwnPartOfTheSum", reduce_scatter_keeps_the_own_part_of_the_sum},
      {"PartsOfOneBufferAreReducedAndGatheredWhereTheyLie",
       parts_of_one_buffer_are_reduced_and_gathered_where_they_lie},
      {"BroadcastSendsTheRootsTensor", broadcast_sends_the_roots_tensor},
      {"AllToAllTransposesRanksAndParts", all_to_all_transposes_ranks_and_parts},
      {"MessagesOfTwoRanksArriveInOrder", messages_of_two_ranks_arrive_in_order},
      {"SendAndRecvMatchBySourceAndTag", send_and_recv_match_by_source_and_tag},
      {"HandlesAreWaitedForInAnyOrder", handles_are_waited_for_in_any_order},
      {"AnUnwaitedHandleCompletesWhenItIsDropped", an_unwaited_handle_completes_when_it_is_dropped},
      {"SplitGroupsTalkAmongThemselves", split_groups_talk_among_themselves},
      {"ScalarsAreSummedInDoubleInRankOrder", scalars_are_summed_in_double_in_rank_order},
      {"SumsHaveTheSameBitsOnAllRanksAndEveryTime", sums_have_the_same_bits_on_all_ranks_and_every_time},
      {"BarriersAndOtherCollectivesKeepTheirOrder", barriers_and_other_collectives_keep_their_order},
  };
  return all;
}

namespace {

enum class Transport { Local, GlooThreads };

using Parameters = std::tuple<Transport, int, std::size_t>;

class Contract : public testing::TestWithParam<Parameters> {};

TEST_P(Contract, Holds) {
  const auto [transport, size, index] = GetParam();
  const Clause& clause = clauses()[index];
  const LocalOptions options{.timeout = seconds(30)};
  const auto run = transport == Transport::Local
                       ? static_cast<void (*)(int, const std::function<void(Group)>&, const LocalOptions&)>(run_ranks)
                       : run_gloo_ranks;
  try {
    run(size, clause.body, options);
  } catch (const std::exception& e) {
    FAIL() << e.what();
  }
}

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  const auto [transport, size, index] = info.param;
  return concat(clauses()[index].name, transport == Transport::Local ? "_Local_" : "_GlooThreads_", size, "Ranks");
}

INSTANTIATE_TEST_SUITE_P(Transports, Contract,
                         testing::Combine(testing::Values(Transport::Local, Transport::GlooThreads),
                                          testing::Values(1, 2, 3, 4, 8),
                                          testing::Range<std::size_t>(0, clauses().size())),
                         name_of);

class ContractBetweenProcesses : public testing::TestWithParam<int> {};

TEST_P(ContractBetweenProcesses, HoldsOverGloo) {
  const LaunchResult result = launch_processes(GetParam(), {"/proc/self/exe", "--as-rank", "contract"});
  EXPECT_EQ(result.exit_code, 0) << result.message;
}

INSTANTIATE_TEST_SUITE_P(Sizes, ContractBetweenProcesses, testing::Values(1, 2, 3));

}  // namespace
}  // namespace megatron::comm::contract
