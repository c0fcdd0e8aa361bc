#include "megatron/kernels/cpu/attention/backward_pieces.h"

#include <gtest/gtest.h>

#include <vector>

namespace megatron::kernels::cpu {
namespace {

AttentionProblem problem(std::size_t batch, std::size_t groups, std::size_t sharing, std::size_t keys) {
  AttentionProblem p{};
  p.queries = p.keys = keys;
  p.batch = batch;
  p.groups = groups;
  p.sharing = sharing;
  p.size = 64;
  return p;
}

TEST(BackwardPieces, GiveEachHeadEachPartOfItsKeysOnce) {
  for (const std::size_t batch : {1, 3}) {
    for (const std::size_t groups : {1, 2, 5, 40}) {
      for (const std::size_t sharing : {1, 3, 8, 32}) {
        for (const std::size_t keys : {1, 256, 257, 1000, 5000}) {
          const AttentionProblem p = problem(batch, groups, sharing, keys);
          const BackwardPieces pieces = backward_pieces(p, 1024, 256);
          SCOPED_TRACE(testing::Message() << batch << " x " << groups << " x " << sharing << " heads, " << keys
                                          << " keys: " << pieces.subsets << " subsets, " << pieces.lanes << " lanes of "
                                          << pieces.part << " keys");
          EXPECT_EQ(pieces.part % 256, 0u);
          std::vector<int> computed(batch * groups * sharing * pieces.parts(p));
          for (std::size_t i = 0; i < pieces.count(p); ++i) {
            const BackwardPiece piece = pieces.piece(p, i);
            EXPECT_LE(piece.members, pieces.members(p));
            for (std::size_t member = 0; member < piece.members; ++member) {
              const Head head{piece.group.b, piece.group.group, piece.first_member + member};
              EXPECT_EQ(pieces.piece_of(p, head).number, piece.number - piece.lane);
              const std::size_t number = head.b * p.heads() + p.number_of(head);
              for (std::size_t part = 0; part < pieces.parts(p); ++part)
                computed[number * pieces.parts(p) + part] += pieces.lane_of(part) == piece.lane ? 1 : 0;
            }
          }
          EXPECT_EQ(computed, std::vector<int>(computed.size(), 1));
        }
      }
    }
  }
}

TEST(BackwardPieces, AreEnoughForEightThreadsWhereTheShapeAllowsIt) {
  for (const std::size_t groups : {1, 2, 5, 8, 40})
    for (const std::size_t sharing : {1, 3, 8, 32})
      EXPECT_GE(backward_pieces(problem(1, groups, sharing, 4096), 1024, 256).count(problem(1, groups, sharing, 4096)),
                8u);
}

// Queries that see few keys read those of one part, but for those at a border.
TEST(BackwardPieces, HaveFewBordersWhereQueriesSeeFewKeys) {
  for (const std::size_t groups : {1, 4, 40}) {
    AttentionProblem p = problem(1, groups, 1, 8192);
    std::vector<std::int32_t> first_key(p.queries);
    for (std::size_t query = 1024; query < p.queries; ++query)
      first_key[query] = static_cast<std::int32_t>(query - 1023);
    p.first_key = first_key.data();
    p.causal = true;
    EXPECT_EQ(most_keys_seen(p), 1024u);
    const BackwardPieces pieces = backward_pieces(p, 1024, 256);
    EXPECT_EQ(pieces.part, groups == 1 ? 512u : groups == 4 ? 2048u : 4096u);
    EXPECT_EQ(pieces.parts(p), groups == 40 ? 2u : pieces.lanes);
    first_key.back() = 0;  // one sees all
    EXPECT_EQ(backward_pieces(p, 1024, 256).part, groups == 1 ? 256u : 1024u);
  }
}

// What five arrays of a part take does not follow a wide window out of a cache.
TEST(BackwardPieces, StayInACacheWhereAWindowDoesNot) {
  AttentionProblem p = problem(1, 40, 1, 32768);
  std::vector<std::int32_t> first_key(p.queries);
  for (std::size_t query = 4096; query < p.queries; ++query) first_key[query] = static_cast<std::int32_t>(query - 4095);
  p.first_key = first_key.data();
  p.causal = true;
  EXPECT_EQ(most_keys_seen(p), 4096u);
  EXPECT_EQ(backward_pieces(p, 1024, 256).part, 1024u);
}

// Under a causal mask part i of n is seen by the share (n - i - 1/2) / n of the queries.
TEST(BackwardPieces, GiveLanesEqualWorkUnderACausalMask) {
  const AttentionProblem p = problem(1, 1, 1, 16384);
  const BackwardPieces pieces = backward_pieces(p, 1024, 256);
  ASSERT_EQ(pieces.lanes, 16u);
  std::vector<std::size_t> work(pieces.lanes);
  for (std::size_t part = 0; part < pieces.parts(p); ++part)
    work[pieces.lane_of(part)] += 2 * (pieces.parts(p) - part) - 1;
  EXPECT_EQ(work, std::vector<std::size_t>(pieces.lanes, work[0]));
}

}  // namespace
}  // namespace megatron::kernels::cpu
