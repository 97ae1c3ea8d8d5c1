// Groups of sixteen mentions: their products with a query vector, and which of them start a posting.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "views.hpp"

namespace coil {
namespace {

// fp16 and fp32: each lane sums its dimensions in order.
template <class S, class Value>
struct FloatGroup {
    const QueryVector &q;
    typename S::Floats operator()(const std::uint8_t *group, const std::uint8_t *) const {
        const Value *values = reinterpret_cast<const Value *>(group);
        typename S::Floats sum = S::spread(0.0f);
        for (int d = 0; d < q.dim; ++d) sum = S::add(sum, S::multiply(S::load(values + LANES * d), S::spread(q.exact[static_cast<std::size_t>(d)])));
        return sum;
    }
};

// The groups in memory. The last one may have fewer lanes, and the last quad of int8 fewer dimensions: such a group is copied
// into a full one.
class Groups {
  public:
    explicit Groups(const Vectors &vectors)
        : vectors_(vectors),
          size_(bytes_of(vectors.kind)),
          width_(vectors.kind == Kind::int8 ? 4 : 1),
          bytes_(static_cast<std::int64_t>(LANES) * vectors.dim * size_),
          whole_(vectors.dim % width_ == 0 ? vectors.count / LANES : 0) {}

    std::int64_t bytes() const { return bytes_; }

    // Calls `products` with the values and the scales of a group.
    template <class Products>
    auto with(std::int64_t group, const Products &products) const {
        const std::uint8_t *scales = vectors_.scales == nullptr ? nullptr : vectors_.scales + group * LANES;
        if (__builtin_expect(group < whole_, 1)) return products(vectors_.data + group * bytes_, scales);
        return products_of_copy(group, scales, products);
    }

    void prefetch(std::int64_t group) const {
        const std::uint8_t *ahead = vectors_.data + group * bytes_;
        for (std::int64_t at = 0; at < bytes_ && at < 1024; at += 64) __builtin_prefetch(ahead + at, 0, 2);
        if (vectors_.scales != nullptr) __builtin_prefetch(vectors_.scales + group * LANES, 0, 2);
    }

  private:
    template <class Products>
    __attribute__((noinline)) auto products_of_copy(std::int64_t group, const std::uint8_t *scales, const Products &products) const {
        alignas(64) std::uint8_t copy[MOST_DIM * LANES * 4];
        std::uint8_t few[LANES] = {};
        const std::uint8_t *base = vectors_.data + group * bytes_;
        const int lanes = static_cast<int>(std::min<std::int64_t>(LANES, vectors_.count - group * LANES));
        std::memset(copy, 0, static_cast<std::size_t>((vectors_.dim + width_ - 1) / width_ * width_) * LANES * static_cast<std::size_t>(size_));
        for (int begin = 0; begin < vectors_.dim; begin += width_) {
            const int here = std::min(width_, vectors_.dim - begin);
            for (int lane = 0; lane < lanes; ++lane)
                std::memcpy(copy + (begin * LANES + lane * width_) * size_, base + (begin * lanes + lane * here) * size_,
                            static_cast<std::size_t>(here * size_));
        }
        if (scales != nullptr) std::memcpy(few, scales, static_cast<std::size_t>(lanes));
        return products(copy, few);
    }

    const Vectors &vectors_;
    const int size_, width_;
    const std::int64_t bytes_;
    const std::int64_t whole_;  // groups before this one need no copy
};

// Calls `use` with a function that returns the products of a group. The usual width of vectors is a compile-time constant.
template <class S, class Use>
inline auto with_products(const Vectors &vectors, const QueryVector &q, Use use) {
    if (vectors.kind == Kind::fp32) return use(FloatGroup<S, float>{q});
    if (vectors.kind == Kind::fp16) return use(FloatGroup<S, std::uint16_t>{q});
    if (vectors.dim == 32) return use(typename S::template Int8Group<8>(q, 8));
    return use(typename S::template Int8Group<0>(q, (vectors.dim + 3) / 4));
}

// The lanes of a group that start a posting.
inline unsigned starts_of(const std::uint64_t *posting_starts, std::int64_t group) {
    return static_cast<unsigned>(posting_starts[group / 4] >> (LANES * (group % 4))) & 0xffffu;
}

// The lanes of a group that belong to the mentions [begin, end).
inline unsigned lanes_within(std::int64_t group, std::int64_t begin, std::int64_t end) {
    const std::int64_t first = group * LANES;
    unsigned mask = 0xffffu;
    if (begin > first) mask &= 0xffffu << (begin - first);
    if (end < first + LANES) mask &= (1u << (end - first)) - 1;
    return mask;
}

}  // namespace
}  // namespace coil
