// Problems of attention, their references on the host in fp64 and in the problem's precision, and
// the comparison with what the kernels compute.
#pragma once

#include <algorithm>
#include <array>
#include <thread>

#include "attention/documents_testing.hpp"
#include "device_testing.hpp"
#include "kernels/attention.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::kernels {

struct Case {
  std::int64_t s, b, heads, d;
  std::int64_t kv_heads = 0;  // 0: as many as heads

  std::int64_t kv() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t all_heads() const { return heads + 2 * kv(); }
};

constexpr std::int64_t kFirstHead = 3;

constexpr std::uint64_t kFirstSample = (std::uint64_t{5} << 32) + 500;

/// For the host; the GPU has the first sample in its memory.
inline Dropout dropout_of(double probability) {
  return {probability, 11, &kFirstSample, 2, DropoutSite::attention};
}

inline std::string text_of(const Case& c, DType dtype, double probability, bool causal) {
  return std::string(name_of(dtype)) + " s " + std::to_string(c.s) + " b " + std::to_string(c.b) +
         " heads " + std::to_string(c.heads) + " d " + std::to_string(c.d) +
         (c.kv_heads > 0 ? " kv heads " + std::to_string(c.kv_heads) : "") +
         (probability > 0.0 ? " dropout" : "") + (causal ? " causal" : " full");
}

struct Results {
  std::vector<double> out, lse, dqkv;
};

struct Problem {
  Case size;
  DType dtype;
  Dropout dropout;
  bool causal;
  std::vector<double> qkv, dout;
  std::vector<std::int32_t> document_start;  // [b, s], or empty
  std::vector<std::int32_t> lengths;         // [b], or empty

  Problem(Case size, DType dtype, double probability, bool causal)
      : size(size),
        dtype(dtype),
        dropout(dropout_of(probability)),
        causal(causal),
        qkv(random_values(qkv_shape().size(), 1, dtype)),
        dout(random_values(elements(), 2, dtype)) {}

  // Documents of random lengths, other ones in each sample; of one token each for a `mean` of 1.
  void cut_documents(std::int64_t mean) {
    document_start.clear();
    for (std::int64_t j = 0; j < size.b; ++j) {
      const std::vector<std::int32_t> starts = random_documents(size.s, mean, 40 + j);
      document_start.insert(document_start.end(), starts.begin(), starts.end());
    }
  }
  // Padding in most samples: all of it, none, a row, all but a row, and lengths between.
  void pad() {
    const auto s = static_cast<std::int32_t>(size.s);
    const std::int32_t choice[] = {s / 2 + 1, 0, s, 1, s - 1, s / 3, 2 * s / 3};
    lengths.clear();
    for (std::int64_t j = 0; j < size.b; ++j) lengths.push_back(choice[j % 7]);
  }
  std::int64_t length(std::int64_t j) const { return lengths.empty() ? size.s : lengths[j]; }
  std::int64_t first_key(std::int64_t j, std::int64_t query) const {
    return document_start.empty() ? 0 : document_start[j * size.s + query];
  }

  std::int64_t elements() const { return size.s * size.b * size.heads * size.d; }
  Shape qkv_shape() const { return {size.s, size.b, size.all_heads() * size.d}; }
  Shape out_shape() const { return {size.s, size.b, size.heads * size.d}; }
  Shape lse_shape() const { return {size.b, size.heads, size.s}; }
  std::size_t workspace() const {
    return cuda::attention_backward_workspace(dtype, size.s, size.b, size.heads, size.d,
                                              size.kv_heads);
  }

  // The host operation in double.
  Results exact() {
    Results r{std::vector<double>(elements()), std::vector<double>(size.b * size.heads * size.s),
              std::vector<double>(qkv.size())};
    const auto tensor = [](std::vector<double>& values, Shape shape) {
      return Tensor{values.data(), DType::f64, shape};
    };
    const Tensor in = tensor(qkv, qkv_shape()), out = tensor(r.out, out_shape()),
                 lse = tensor(r.lse, lse_shape());
    const std::int32_t* const starts = document_start.empty() ? nullptr : document_start.data();
    const std::int32_t* const given = lengths.empty() ? nullptr : lengths.data();
    host::attention_forward(
        {in, out, lse, size.heads, kFirstHead, dropout, causal, starts, given, size.kv_heads});
    host::attention_backward({tensor(dout, out_shape()), in, out, lse, tensor(r.dqkv, qkv_shape()),
                              size.heads, kFirstHead, dropout, causal, starts, given,
                              size.kv_heads});
    return r;
  }

  // A plain version that stores out, P and dS in the precision of the operands.
  Results plain() const;

  // The CUDA operations; with `context`, its launchers.
  Results on_gpu(const cuda::Context* context = nullptr) const {
    gpu().reserve_workspace(workspace());
    const OnGpu in(qkv_shape(), dtype, qkv), out(out_shape(), dtype), lse(lse_shape(), DType::f32),
        gradient(out_shape(), dtype, dout), dqkv(qkv_shape(), dtype);
    const IntsOnGpu documents(document_start), all_lengths(lengths);
    const std::int32_t* const given = lengths.empty() ? nullptr : all_lengths.data();
    const std::int32_t* const starts = document_start.empty() ? nullptr : documents.data();
    const device::Buffer first_sample = gpu().allocate(sizeof kFirstSample, "a test");
    gpu().upload(first_sample.get(), &kFirstSample, sizeof kFirstSample);
    Dropout drops = dropout;
    drops.first_sample = static_cast<const std::uint64_t*>(first_sample.get());
    const AttentionForward forward{in.tensor(), out.tensor(), lse.tensor(), size.heads,
                                   kFirstHead,  drops,        causal,       starts,
                                   given,       size.kv_heads};
    const AttentionBackward backward{
        gradient.tensor(), in.tensor(), out.tensor(), lse.tensor(), dqkv.tensor(), size.heads,
        kFirstHead,        drops,       causal,       starts,       given,         size.kv_heads};
    if (context) {
      cuda::attention_forward(forward, *context);
      cuda::attention_backward(backward, *context);
    } else {
      gpu().attention_forward(forward);
      gpu().attention_backward(backward);
    }
    return {out.read(), lse.read(), dqkv.read()};
  }
};

inline Results Problem::plain() const {
  const std::int64_t s = size.s, b = size.b, heads = size.heads, d = size.d;
  const auto stored = [&](double value) {
    const float narrow = static_cast<float>(value);
    if (dtype == DType::bf16) return static_cast<double>(from_bf16(to_bf16(narrow)));
    if (dtype == DType::f16) return static_cast<double>(from_f16(to_f16(narrow)));
    return static_cast<double>(narrow);
  };
  Results r{std::vector<double>(elements()), std::vector<double>(b * heads * s),
            std::vector<double>(qkv.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const std::uint32_t threshold = attention_threshold(dropout.probability);
  std::vector<double> probability(s), factor(s, 1.0);
  for (std::int64_t j = 0; j < b; ++j)
    for (std::int64_t i = 0; i < heads; ++i)
      for (std::int64_t q = 0; q < length(j); ++q) {
        const auto at = [&](std::int64_t t, int part) {
          const std::int64_t kv = i / (heads / size.kv());
          const std::int64_t head = part == 0 ? i : heads + (part - 1) * size.kv() + kv;
          return ((t * b + j) * size.all_heads() + head) * d;
        };
        const std::int64_t first = first_key(j, q), keys = causal ? q + 1 : length(j);
        const std::int64_t o = ((q * b + j) * heads + i) * d;
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        for (std::int64_t k = first; k < keys; ++k) {
          double score = 0;
          for (std::int64_t c = 0; c < d; ++c) score += qkv[at(q, 0) + c] * qkv[at(k, 1) + c];
          probability[k] = score * scale;
          largest = std::max(largest, probability[k]);
          if (dropout.probability > 0.0) {
            const AttentionMask mask{{dropout.seed, kFirstSample + static_cast<std::uint64_t>(j),
                                      dropout.layer, dropout.site},
                                     threshold};
            const auto element = static_cast<std::uint64_t>(((kFirstHead + i) * s + q) * s + k);
            const Philox4 words = mask.words(element / 8);
            const std::uint32_t word =
                std::array{words.x, words.y, words.z, words.w}[element % 8 / 2];
            factor[k] =
                AttentionMask::bits(word, element) < threshold ? 0.0 : attention_kept(threshold);
          }
        }
        for (std::int64_t k = first; k < keys; ++k) sum += std::exp(probability[k] - largest);
        r.lse[(j * heads + i) * s + q] = largest + std::log(sum);
        for (std::int64_t k = first; k < keys; ++k) {
          probability[k] = std::exp(probability[k] - largest) / sum;
          const double weight = stored(probability[k] * factor[k]);
          for (std::int64_t c = 0; c < d; ++c) r.out[o + c] += weight * qkv[at(k, 2) + c];
        }
        for (std::int64_t c = 0; c < d; ++c) {
          r.out[o + c] = stored(r.out[o + c]);
          delta += r.out[o + c] * dout[o + c];
        }
        for (std::int64_t k = first; k < keys; ++k) {
          double dprobability = 0;
          for (std::int64_t c = 0; c < d; ++c) dprobability += dout[o + c] * qkv[at(k, 2) + c];
          const double weight = stored(probability[k] * factor[k]);
          const double dscore = stored(probability[k] * (dprobability * factor[k] - delta)) * scale;
          for (std::int64_t c = 0; c < d; ++c) {
            r.dqkv[at(k, 2) + c] += weight * dout[o + c];
            r.dqkv[at(q, 0) + c] += dscore * qkv[at(k, 1) + c];
            r.dqkv[at(k, 1) + c] += dscore * qkv[at(q, 0) + c];
          }
        }
      }
  for (double& value : r.dqkv) value = stored(value);
  return r;
}

// The elements of one part (0 q, 1 k, 2 v) of a qkv tensor.
inline std::vector<double> part_of(const std::vector<double>& qkv, const Case& size, int part) {
  std::vector<double> elements;
  for (std::size_t i = 0; i < qkv.size(); ++i) {
    const auto head = static_cast<std::int64_t>(i) / size.d % size.all_heads();
    if ((head < size.heads ? 0 : head < size.heads + size.kv() ? 1 : 2) == part)
      elements.push_back(qkv[i]);
  }
  return elements;
}

// Problems whose results on the GPU are compared with those of the references.
class Comparison {
 public:
  // With `context`, of its launchers.
  explicit Comparison(const cuda::Context* context = nullptr) : context_(context) {}

  void add(Problem problem, std::string name) {
    trials_.push_back({std::move(problem), std::move(name), {}, {}});
  }
  // The references take far longer than the GPU: they come first, a problem on each core.
  void expect_near() {
    host::use_threads(static_cast<int>(std::thread::hardware_concurrency()));
#pragma omp parallel for schedule(dynamic)
    for (Trial& trial : trials_) {
      trial.exact = trial.problem.exact();
      trial.plain = trial.problem.plain();
    }
    for (const Trial& trial : trials_) expect_near(trial);
  }

 private:
  struct Trial {
    Problem problem;
    std::string name;
    Results exact, plain;
  };
  void expect_near(const Trial& trial) const;

  const cuda::Context* context_;
  std::vector<Trial> trials_;
};

inline void Comparison::expect_near(const Trial& trial) const {
  const auto& [problem, name, exact, plain] = trial;
  const Results found = problem.on_gpu(context_);
  expect_as_near("out, " + name, found.out, plain.out, exact.out);
  expect_as_near("lse, " + name, found.lse, exact.lse, exact.lse);
  expect_as_near("dqkv, " + name, found.dqkv, plain.dqkv, exact.dqkv);
  for (int part = 0; part < 3; ++part) {
    const std::vector<double> expected = part_of(exact.dqkv, problem.size, part);
    // Where each query attends to one key, dq and dk are zero: a relative error has no meaning.
    if (std::all_of(expected.begin(), expected.end(),
                    [](double value) { return std::abs(value) < 1e-12; }))
      continue;
    expect_as_near(std::string(1, "qkv"[part]) + " of dqkv, " + name,
                   part_of(found.dqkv, problem.size, part), part_of(plain.dqkv, problem.size, part),
                   expected);
  }
}

}  // namespace trireme::kernels
