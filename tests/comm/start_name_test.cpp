#include "megatron/comm/processes/start_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
constexpr milliseconds kLong{60000}, kShort{50};

class Dictionary : public KeyStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  void set_once(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_.emplace(key, value);
  }
  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

std::future<std::string> come(Dictionary& keys, int rank, int size, milliseconds timeout) {
  return std::async(std::launch::async,
                    [&keys, rank, size, timeout] { return name_of_start(keys, rank, size, timeout); });
}

/// The name that all ranks of one start have got.
std::string start_of(Dictionary& keys, const std::vector<int>& ranks) {
  std::vector<std::future<std::string>> names;
  const int size = static_cast<int>(ranks.size());
  for (const int rank : ranks) names.push_back(come(keys, rank, size, kLong));
  const std::string name = names[0].get();
  for (std::size_t i = 1; i < names.size(); ++i) EXPECT_EQ(names[i].get(), name) << "rank " << ranks[i];
  return name;
}

TEST(StartName, TheNewestIsThatOfTheLastStart) {
  Dictionary keys;
  EXPECT_EQ(newest_start(keys), std::nullopt);
  for (int i = 0; i < 2; ++i) {
    const std::string name = start_of(keys, {0, 1});
    EXPECT_EQ(newest_start(keys), name);
  }
}

TEST(StartName, IsOneOfAllRanksAndAnotherForEachStartInOneStore) {
  Dictionary keys;
  const std::string first = start_of(keys, {0, 1, 2, 3}), second = start_of(keys, {3, 1, 0, 2}),
                    of_fewer = start_of(keys, {2, 1, 0}), of_more = start_of(keys, {4, 0, 3, 2, 1});
  EXPECT_EQ((std::set<std::string>{first, second, of_fewer, of_more}).size(), 4u);
}

// What is left of a start that rank 0 never came to, and of one in which it alone came.
TEST(StartName, IsNotThatOfAStartThatFailed) {
  Dictionary keys;
  EXPECT_THROW(name_of_start(keys, 1, 3, kShort), PeerError);
  EXPECT_THROW(name_of_start(keys, 0, 3, kShort), PeerError);
  EXPECT_THROW(name_of_start(keys, 2, 3, kShort), PeerError);
  // Rank 0 answers first those that are gone.
  std::future<std::string> teller = come(keys, 0, 3, kLong);
  EXPECT_EQ(teller.wait_for(kShort), std::future_status::timeout);
  std::future<std::string> one = come(keys, 1, 3, kLong), two = come(keys, 2, 3, kLong);
  const std::string name = teller.get();
  EXPECT_EQ(one.get(), name);
  EXPECT_EQ(two.get(), name);
}

TEST(StartName, NamesThoseThatDoNotCome) {
  Dictionary keys;
  std::future<std::string> teller = come(keys, 0, 4, milliseconds(2000)), one = come(keys, 1, 4, milliseconds(2000));
  EXPECT_THAT([&] { teller.get(); },
              testing::ThrowsMessage<PeerError>(HasSubstr("of 4 ranks: ranks 2, 3 did not arrive within 2 s")));
  EXPECT_THAT([&] { one.get(); }, testing::ThrowsMessage<PeerError>(HasSubstr("ranks 2, 3 did not arrive")));
  EXPECT_THAT([&] { name_of_start(keys, 3, 4, kShort); },
              testing::ThrowsMessage<PeerError>(HasSubstr("ranks 0, 2 did not arrive")));
}

TEST(StartName, NamesRank0WhereItIsGoneBeforeItHasSaidThatAllHaveHeard) {
  class WithoutTheLast final : public Dictionary {
   public:
    void set(const std::string& key, const std::string& value) override {
      if (key.find("heard by all") == std::string::npos) Dictionary::set(key, value);
    }
  } keys;
  std::future<std::string> teller = come(keys, 0, 2, kLong);
  EXPECT_THAT([&] { name_of_start(keys, 1, 2, milliseconds(1000)); },
              testing::ThrowsMessage<PeerError>(HasSubstr("of 2 ranks: rank 0 did not arrive")));
  teller.get();
}

}  // namespace
}  // namespace megatron::comm
