// A query in the form that the kernels read, created from Python arrays.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "checks.hpp"
#include "views.hpp"

namespace coil {

namespace nb = nanobind;

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A query vector in 15 bits, v ~ code * scale: the same codes as from quantise_queries in coil/lists/precision.py.
inline QueryVector make_vector(const float *exact, int dim) {
    QueryVector q;
    const std::size_t padded = static_cast<std::size_t>((dim + 63) / 64 * 64);
    q.dim = dim;
    q.exact.assign(padded, 0.0f);
    q.codes.assign(padded, 0);
    q.high.assign(padded, 0);
    q.low.assign(padded, 0);
    float largest = 0.0f;
    for (int d = 0; d < dim; ++d) {
        check(std::isfinite(exact[d]), "a query vector contains NaN or infinity");
        largest = std::max(largest, std::abs(exact[d]));
    }
    q.scale = largest / QUERY_LEVELS;
    const float safe = q.scale > 0.0f ? q.scale : 1.0f;
    double squares[2] = {};
    for (int d = 0; d < dim; ++d) {
        const std::size_t at = static_cast<std::size_t>(d);
        const std::int16_t code = static_cast<std::int16_t>(std::clamp(std::nearbyint(exact[d] / safe), -QUERY_LEVELS, QUERY_LEVELS));
        q.exact[at] = exact[d];
        q.codes[at] = code;
        q.high[at] = static_cast<std::int8_t>(code >> 7);
        q.low[at] = static_cast<std::int8_t>(code & 127);
        q.code_sum += code;
        const double coded = static_cast<double>(code) * q.scale;
        squares[0] += static_cast<double>(exact[d]) * exact[d];
        squares[1] += coded * coded;
    }
    q.norm = static_cast<float>(std::sqrt(std::max(squares[0], squares[1])) * (1 + 1e-6));
    return q;
}

class NativeQuery {
  public:
    NativeQuery(const std::vector<nb::bytes> &keys, Array<float> bases, Matrix<float> vectors, Array<float> sentence, bool weighted,
                float c0, float c1, bool floor) {
        const std::size_t n = keys.size(), dim = vectors.shape(1);
        check(dim <= MOST_DIM && sentence.shape(0) <= MOST_DIM, "vectors are too wide for the kernels");
        check(vectors.shape(0) == n && bases.shape(0) == n, "keys, bases and vectors differ in number");
        check(std::isfinite(c0) && c0 >= 0.0f && std::isfinite(c1) && c1 >= 0.0f, "the saturation is negative or not a finite number");
        check(floor || !weighted, "a weighted query requires the floor at 0");
        query.n_t = static_cast<int>(dim);
        query.saturation = {weighted, c0, c1};
        query.floor = floor;
        for (std::size_t i = 0; i < n; ++i) {
            check(std::isfinite(bases.data()[i]), "a base is not a finite number");
            add({std::string(keys[i].c_str(), keys[i].size()), bases.data()[i],
                 make_vector(vectors.data() + i * dim, static_cast<int>(dim)), 1});
        }
        const int width = static_cast<int>(sentence.shape(0)), head = std::min(width, HEAD);
        query.head = make_vector(sentence.data(), head);
        query.tail = make_vector(sentence.data() + head, width - head);
    }
    Query query;

  private:
    // If only counts matter, a repeated word increases the multiple of its token.
    void add(QueryToken token) {
        if (!query.n_t) {
            const auto [found, is_new] = places_.emplace(token.key, query.tokens.size());
            if (!is_new && query.tokens[found->second].base == token.base) {
                ++query.tokens[found->second].multiple;
                return;
            }
        }
        query.tokens.push_back(std::move(token));
    }

    std::unordered_map<std::string, std::size_t> places_;  // of words among the tokens
};

}  // namespace coil
