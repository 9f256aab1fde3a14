#include "comm/communicator.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::comm {
namespace {

TEST(PipelineRoutes, ActivationsGoForwardAndGradientsBack) {
  for (int stages = 1; stages <= 9; ++stages) {
    const std::vector<Route> routes = pipeline_routes(stages);
    EXPECT_EQ(routes.size(), 2u * (stages - 1));
    for (int stage = 0; stage + 1 < stages; ++stage) {
      EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{stage, stage + 1, kActivationTag}),
                1);
      EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{stage + 1, stage, kGradientTag}), 1);
    }
  }
}

TEST(PipelineRoutes, SeveralChunksCloseTheRing) {
  for (int stages = 2; stages <= 9; ++stages) {
    const std::vector<Route> routes = pipeline_routes(stages, /*chunks=*/2);
    EXPECT_EQ(routes.size(), 2u * stages);
    for (int stage = 0; stage < stages; ++stage) {
      const int next = (stage + 1) % stages;
      EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{stage, next, kActivationTag}), 1);
      EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{next, stage, kGradientTag}), 1);
    }
  }
}

// Opened in order, each by its two ranks together, all routes take four turns whatever the length.
TEST(PipelineRoutes, ManyCanBeOpenedTogether) {
  for (int stages = 3; stages <= 64; ++stages) {
    std::vector<int> turn(stages, 0);
    for (const Route& route : pipeline_routes(stages)) {
      const int next = std::max(turn[route.source], turn[route.destination]) + 1;
      turn[route.source] = turn[route.destination] = next;
    }
    EXPECT_EQ(*std::max_element(turn.begin(), turn.end()), 4) << stages;
  }
}

}  // namespace
}  // namespace trireme::comm
