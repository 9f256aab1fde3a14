#include "workbench.hpp"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kVocabulary = 1000;

// Tokens as in a text: a few words make up much of it.
std::vector<std::int32_t> text(std::int64_t tokens) {
  std::vector<std::int32_t> ids(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double u = philox_uniform(1, 0, t);
    ids[t] = u < 0.3 ? 17 : u < 0.4 ? 256 : static_cast<std::int32_t>(u * kVocabulary);
  }
  return ids;
}

TEST(Embedding, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const std::int64_t h : {1, 7, 40, 768, 1601}) {
      // The second shard of three: some ids are others'.
      const std::vector<std::int32_t> ids = text(500);
      expect_as_on_host("embedding of " + std::to_string(h), dtype,
                        [&](Workbench& bench) -> std::vector<Output> {
                          const Tensor out = bench.poisoned({500, h});
                          bench.backend().embedding_forward({.ids = bench.integers(ids),
                                                             .table = bench.random({334, h}, 1),
                                                             .first_row = 200,
                                                             .out = out});
                          return {{"out", out}};
                        });
    }
  }
}

void expect_gradient(const std::vector<std::int32_t>& ids, std::int64_t h, std::int64_t first_row,
                     std::int64_t rows) {
  for (const DType dtype : kStorageTypes) {
    const auto tokens = static_cast<std::int64_t>(ids.size());
    expect_as_on_host(fmt::format("embedding gradient of {} tokens of {}", tokens, h), dtype,
                      [&](Workbench& bench) -> std::vector<Output> {
                        const Tensor dtable = bench.wide_random({rows, h}, 2);
                        bench.backend().embedding_backward({.ids = bench.integers(ids),
                                                            .dout = bench.random({tokens, h}, 1),
                                                            .first_row = first_row,
                                                            .dtable = dtable});
                        return {{"dtable", dtable}};
                      });
  }
}

TEST(EmbeddingBackward, AgreesWithTheHost) {
  for (const std::int64_t tokens : {1, 63, 64, 65, 129, 3000})
    expect_gradient(text(tokens), 40, 0, kVocabulary);
  for (const std::int64_t h : {1, 7, 768, 1601, 2560})
    expect_gradient(text(700), h, 0, kVocabulary);
  expect_gradient(text(20000), 64, 0, kVocabulary);  // more than one block sorts
}

TEST(EmbeddingBackward, SkipsOtherShards) {
  expect_gradient(text(3000), 40, 200, 334);
  expect_gradient(text(3000), 40, 10 * kVocabulary, 334);
}

TEST(EmbeddingBackward, SumsLongRuns) {
  expect_gradient(std::vector<std::int32_t>(5000, 3), 40, 0, 8);
  std::vector<std::int32_t> ids(640);
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t / 128);
  expect_gradient(ids, 40, 0, 5);  // runs that end where chunks do
}

TEST(Position, AgreesWithTheHost) {
  for (const DType dtype : kStorageTypes) {
    for (const Shape shape :
         {Shape{1, 1, 1}, Shape{3, 2, 7}, Shape{65, 9, 768}, Shape{7, 1, 1600}}) {
      for (const double probability : {0.0, 0.2}) {
        expect_as_on_host("position of " + to_string(shape), dtype,
                          [&](Workbench& bench) -> std::vector<Output> {
                            const Tensor x = bench.random(shape, 1);
                            bench.backend().position_dropout(
                                {.x = x,
                                 .position = bench.random({shape[0] + 11, shape[2]}, 2),
                                 .first_position = 9,
                                 .dropout = {.probability = probability, .seed = 5}});
                            return {{"x", x}};
                          });
      }
      expect_as_on_host("position by token of " + to_string(shape), dtype,
                        [&](Workbench& bench) -> std::vector<Output> {
                          std::vector<std::int32_t> rows(shape[0] * shape[1]);
                          for (std::size_t t = 0; t < rows.size(); ++t)
                            rows[t] = static_cast<std::int32_t>(t * 7 % (shape[0] + 11));
                          const Tensor x = bench.random(shape, 1);
                          bench.backend().position_dropout(
                              {.x = x,
                               .position = bench.random({shape[0] + 11, shape[2]}, 2),
                               .dropout = {.probability = 0.2, .seed = 5},
                               .rows = bench.integers(rows)});
                          return {{"x", x}};
                        });
      expect_as_on_host("position gradient of " + to_string(shape), dtype,
                        [&](Workbench& bench) -> std::vector<Output> {
                          const Tensor dposition = bench.wide_random({shape[0] + 2, shape[2]}, 2);
                          bench.backend().position_backward(
                              {.dout = bench.random(shape, 1), .dposition = dposition});
                          return {{"dposition", dposition}};
                        });
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
