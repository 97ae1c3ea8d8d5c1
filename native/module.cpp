// The Python face of the native code. Arguments are checked here; the loops live in headers of their own.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "scan.hpp"

namespace nb = nanobind;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ordinals = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static void scan_list(Matrix vectors, Ordinals ordinals, Vector query, bool floor_at_zero, Scores scores) {
    const std::size_t mentions = vectors.shape(0), dim = vectors.shape(1);
    if (ordinals.shape(0) != mentions) throw std::invalid_argument("vectors and ordinals differ in length");
    if (query.shape(0) != dim) throw std::invalid_argument("the query vector has another width than the list");
    const std::int32_t documents = static_cast<std::int32_t>(scores.shape(0));
    std::int32_t last = 0;
    for (std::size_t row = 0; row < mentions; ++row) {
        const std::int32_t ordinal = ordinals.data()[row];
        if (ordinal < last || ordinal >= documents)
            throw std::invalid_argument("ordinals must be non-decreasing and below the number of scores");
        last = ordinal;
    }
    nb::gil_scoped_release release;
    coil::scan_list(vectors.data(), ordinals.data(), mentions, dim, query.data(), floor_at_zero, scores.data());
}

// Names of the vector instruction sets of this processor that a kernel may use.
static std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (__builtin_cpu_supports("avx2")) names.push_back("avx2");
    if (__builtin_cpu_supports("avx512bw")) names.push_back("avx512bw");
    if (__builtin_cpu_supports("avx512vnni")) names.push_back("avx512vnni");
#elif defined(__aarch64__)
    names.push_back("neon");
#endif
    return names;
}

NB_MODULE(_native, m) {
    m.doc() = "Native loops of the search core.";
    m.def("scan_list", &scan_list, nb::arg("vectors"), nb::arg("ordinals"), nb::arg("query"),
          nb::arg("floor_at_zero"), nb::arg("scores"),
          "Add one query token's contribution to the scores of the documents in its list.");
    m.def("instruction_sets", &instruction_sets, "Vector instruction sets of this processor.");
}
