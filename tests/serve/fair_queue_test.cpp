#include "megatron/serve/fair_queue.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <string>

namespace megatron::serve {
namespace {

using ::testing::ElementsAre;

struct Work {
  std::string client;
  double cost;
  int number;
};

TEST(FairQueue, LetsWhoAsksLittlePassWhoAsksMuch) {
  FairQueue<int> queue(100, 100);
  for (int i = 0; i < 4; ++i) queue.push("many", 1, i);
  queue.push("few", 1, 10);
  std::vector<int> order;
  while (!queue.empty()) order.push_back(queue.pop());
  EXPECT_THAT(order, ElementsAre(0, 10, 1, 2, 3));
}

TEST(FairQueue, ServesClientsThatWaitEquallyUpToTheLargestCost) {
  std::mt19937 random(5);
  FairQueue<Work> queue(100000, 100000);
  const std::map<std::string, int> most = {{"a", 1}, {"b", 7}, {"c", 50}};
  for (int i = 0; i < 3000; ++i)
    for (const auto& [client, cost] : most) {
      const double drawn = 1 + static_cast<double>(random() % static_cast<unsigned>(cost));
      queue.push(client, drawn, {client, drawn, i});
    }
  std::map<std::string, double> served;
  std::map<std::string, int> next;
  for (int i = 0; i < 1500; ++i) {
    const Work work = queue.pop();
    EXPECT_EQ(work.number, next[work.client]++);  // in their order
    served[work.client] += work.cost;
    for (const auto& [client, sum] : served) EXPECT_LE(std::abs(sum - served["a"]), 2 * 50) << client << " after " << i;
  }
}

TEST(FairQueue, WhoComesLateIsOwedNothingForTheTimeBefore) {
  FairQueue<Work> queue(1000, 1000);
  for (int i = 0; i < 100; ++i) queue.push("early", 1, {"early", 1, i});
  for (int i = 0; i < 50; ++i) queue.pop();
  for (int i = 0; i < 50; ++i) queue.push("late", 1, {"late", 1, i});
  int late = 0;
  for (int i = 0; i < 20; ++i) late += queue.pop().client == "late" ? 1 : 0;
  EXPECT_NEAR(late, 10, 1);
}

TEST(FairQueue, KeepsItsBoundsForAllAndForEach) {
  FairQueue<int> queue(5, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(queue.takes("a", 1));
    queue.push("a", 10, i);
  }
  EXPECT_FALSE(queue.takes("a", 1));
  EXPECT_TRUE(queue.takes("b", 2));
  EXPECT_FALSE(queue.takes("b", 3));
  queue.push("b", 1, 3);
  queue.push("b", 1, 4);
  EXPECT_FALSE(queue.takes("c", 1));
  EXPECT_EQ(queue.cost(), 32);
  EXPECT_THAT(queue.remove([](int item) { return item % 2 == 0; }), ElementsAre(0, 4, 2));
  EXPECT_EQ(queue.cost(), 11);
  EXPECT_TRUE(queue.takes("a", 2));
  EXPECT_EQ(queue.size(), 2);
}

}  // namespace
}  // namespace megatron::serve
