#include "megatron/study/traffic_picture.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/plan/load_hardware.h"
#include "tests/testing/folders.h"
#include "tests/testing/svg_texts.h"

namespace megatron::study {
namespace {

using plan::Traffic;
using plan::TrafficKind;
using ::testing::HasSubstr;

plan::Hardware of_nodes(std::int64_t ranks) {
  plan::Hardware hardware;
  hardware.name = "test";
  hardware.ranks_per_node = ranks;
  hardware.node.bandwidth_gb_s = 10;
  hardware.cluster.bandwidth_gb_s = 1;
  return hardware;
}

TEST(TrafficPicture, SaysWhatTheBusiestSendOverEachLink) {
  // Within a node rank 0 sends most of what is for tensors; node 0 sends both of the gradients' flows.
  const std::vector<Traffic> traffic = {{0, 1, TrafficKind::Tensor, 4e6},
                                        {0, 2, TrafficKind::Gradients, 1e6},
                                        {1, 0, TrafficKind::Tensor, 3e6},
                                        {1, 3, TrafficKind::Gradients, 2e6},
                                        {2, 0, TrafficKind::Gradients, 2e6}};
  const std::string svg = traffic_svg(traffic, 4, of_nodes(2), "four ranks");
  EXPECT_THAT(svg, HasSubstr(">4.00 MB, 400 us<"));
  EXPECT_THAT(svg, HasSubstr(">3.00 MB, 3 ms<"));
  EXPECT_THAT(svg, HasSubstr("<title>rank 1 to rank 3: gradients 2.00 MB</title>"));
  EXPECT_EQ(testing::text_faults(svg), "");
}

TEST(TrafficPicture, HasNodesOrGroupsOfThemForRowsOfManyRanks) {
  const std::vector<Traffic> traffic = {{0, 1, TrafficKind::Tensor, 4e6}, {0, 9, TrafficKind::Tensor, 1e6}};
  EXPECT_THAT(traffic_svg(traffic, 128, of_nodes(8), ""), HasSubstr("<title>within node 0: tensor 4.00 MB</title>"));
  EXPECT_THAT(traffic_svg(traffic, 128, of_nodes(8), ""), HasSubstr("<title>node 0 to node 1: tensor 1.00 MB</title>"));
  EXPECT_THAT(traffic_svg(traffic, 1024, of_nodes(8), ""),
              HasSubstr("<title>within nodes 0-1: tensor 5.00 MB</title>"));
}

TEST(TrafficPicture, HasRoomForItsTexts) {
  const plan::Hardware hardware = plan::load_hardware(tests_folder() + "/../configs/hardware/dgx-h100.toml");
  for (const int ranks : {1, 2, 8, 12, 48, 64, 65, 512, 3000, 100000}) {
    std::vector<Traffic> traffic;
    for (int rank = 0; rank < ranks; ++rank)
      for (std::size_t kind = 0; kind < plan::kTrafficNames.size(); ++kind)
        for (const int step : {1, 7, 8})
          if (rank + step < ranks)
            traffic.push_back({rank, rank + step, static_cast<TrafficKind>(kind), 123456.789e3 * (rank + 1)});
    EXPECT_EQ(testing::text_faults(traffic_svg(traffic, ranks, hardware, "a picture")), "") << ranks;
  }
}

}  // namespace
}  // namespace megatron::study
