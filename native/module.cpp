// The Python face of the native code: queries and searches; segment.hpp has the segments.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "segment.hpp"

namespace nb = nanobind;
using namespace coil;

namespace coil {
float SCALES[256];
}

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A query vector in 15 bits, v ~ code * scale: the same codes as quantise_queries of coil/lists/precision.py makes.
static QueryVector make_vector(const float *exact, int dim) {
    QueryVector q;
    const std::size_t padded = static_cast<std::size_t>((dim + 63) / 64 * 64);
    q.dim = dim;
    q.exact.assign(padded, 0.0f);
    q.codes.assign(padded, 0);
    q.high.assign(padded, 0);
    q.low.assign(padded, 0);
    float largest = 0.0f;
    for (int d = 0; d < dim; ++d) {
        check(std::isfinite(exact[d]), "a query vector holds NaN or infinity");
        largest = std::max(largest, std::abs(exact[d]));
    }
    q.scale = largest / QUERY_LEVELS;
    const float safe = q.scale > 0.0f ? q.scale : 1.0f;
    // Of both forms, exact and codes * scale, the longer one.
    double squares[2] = {}, error_squares = 0.0;
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
        error_squares += (exact[d] - coded) * (exact[d] - coded);
    }
    const auto length = [](double square) { return static_cast<float>(std::sqrt(square) * (1 + 1e-6)); };
    q.norm = length(std::max(squares[0], squares[1]));
    q.code_error = length(error_squares);
    return q;
}

// A query as the kernels want it: the list of each token, and its vector.
class NativeQuery {
  public:
    NativeQuery(Array<std::int32_t> lists, Matrix<float> vectors, Array<float> sentence, bool floor) {
        const std::size_t n = lists.shape(0), dim = vectors.shape(1);
        check(dim <= MOST_DIM && sentence.shape(0) <= MOST_DIM, "vectors are too wide for the kernels");
        check(vectors.shape(0) == n, "lists and vectors differ in number");
        query.floor = floor;
        for (std::size_t i = 0; i < n; ++i)
            query.tokens.push_back({lists.data()[i], make_vector(vectors.data() + i * dim, static_cast<int>(dim))});
        if (sentence.shape(0)) query.sentence = make_vector(sentence.data(), static_cast<int>(sentence.shape(0)));
    }
    Query query;
};

static bool has(const char *set) {
#if defined(COIL_X86)
    const std::string name = set;
    if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (name == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && has("avx2");
#else
    (void)set;
#endif
    return false;
}

// Names of the kernels that this processor can run, the best first.
static std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char *name : {"avx512", "avx2"})
        if (has(name)) names.push_back(name);
    names.push_back("portable");
    return names;
}

static const Kernels &kernels_of(const std::string &name) {
    const std::vector<std::string> names = instruction_sets();
    check(std::find(names.begin(), names.end(), name) != names.end(), "this processor does not have that instruction set");
#if defined(COIL_X86)
    if (name == "avx512") return avx512_kernels();
    if (name == "avx2") return avx2_kernels();
#endif
    return portable_kernels();
}

static void check_query(const SegmentView &segment, const Query &query) {
    check(query.tokens.empty() || query.tokens[0].vector.dim == segment.mentions.dim, "token vectors differ in width");
    check(!query.sentence.dim || !segment.sentences.dim || query.sentence.dim == segment.sentences.dim,
          "sentence vectors differ in width");
}

template <class T>
static nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> &&values) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *pointer) noexcept { delete static_cast<std::vector<T> *>(pointer); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

static nb::object search_segments(const std::string &instruction_set, const std::vector<Segment *> &segments,
                                  const std::vector<std::optional<Array<std::uint8_t>>> &masks,
                                  const std::vector<NativeQuery *> &queries, std::int64_t k, bool prune, bool without_zero,
                                  std::int64_t at_least, int threads, double seconds, std::int64_t range_rows) {
    check(range_rows > 0, "a range has at least one row");
    const Kernels &kernels = kernels_of(instruction_set);
    check(masks.size() == segments.size(), "there must be one mask for each segment");
    Segments views;
    Masks mask_data;
    Queries asked;
    for (const NativeQuery *query : queries) asked.push_back(&query->query);
    for (std::size_t s = 0; s < segments.size(); ++s) {
        check(!masks[s] || static_cast<std::int64_t>(masks[s]->shape(0)) == segments[s]->view.rows, "a mask has the wrong size");
        views.push_back(&segments[s]->view);
        mask_data.push_back(masks[s] ? masks[s]->data() : nullptr);
        for (const Query *query : asked) check_query(segments[s]->view, *query);
    }
    Options options;
    options.k = k;
    options.prune = prune;
    options.without_zero = without_zero;
    options.at_least = at_least;
    options.threads = threads;
    options.range_rows = range_rows;
    std::vector<Result> results;
    Deadline deadline(seconds);
    {
        const nb::gil_scoped_release release;
        for (Segment *segment : segments)
            for (const Query *query : asked)
                for (const QueryToken &token : query->tokens)
                    if (!deadline.passed() && segment->check_rows(token.list)) deadline.look();
        if (!deadline.look()) results = search(kernels, views, mask_data, asked, options, deadline);
    }
    if (deadline.passed()) return nb::none();
    nb::list answers;
    for (Result &result : results) {
        std::vector<std::int64_t> scores, ordinals;
        std::vector<std::int32_t> of_segment, rows;
        for (const Found &found : result.found) {
            scores.push_back(found.score);
            ordinals.push_back(found.ordinal);
            of_segment.push_back(found.segment);
            rows.push_back(found.row);
        }
        const Stats &s = result.stats;
        answers.append(nb::make_tuple(to_numpy(std::move(scores)), to_numpy(std::move(ordinals)), to_numpy(std::move(of_segment)),
                                      to_numpy(std::move(rows)),
                                      nb::make_tuple(s.mentions_scored, s.mentions_skipped, s.sentences_scored,
                                                     s.sentences_skipped, s.sketches_scored)));
    }
    return answers;
}

static nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> score_segment(const std::string &instruction_set, Segment &segment,
                                                                       const NativeQuery &query) {
    const Kernels &kernels = kernels_of(instruction_set);
    check_query(segment.view, query.query);
    std::vector<std::int64_t> scores(static_cast<std::size_t>(segment.view.rows));
    {
        const nb::gil_scoped_release release;
        for (const QueryToken &token : query.query.tokens) segment.check_rows(token.list);
        score_rows(kernels, segment.view, query.query, scores.data());
    }
    return to_numpy(std::move(scores));
}

// Seconds to read an array once with this many threads: what no search over as many bytes can beat.
static double read_seconds(Array<std::uint64_t> words, int threads) {
    const std::size_t n = words.shape(0), parts = static_cast<std::size_t>(std::max(threads, 1));
    const std::uint64_t *data = words.data();
    std::atomic<std::uint64_t> sink{0};
    std::atomic<std::size_t> next{0};
    const nb::gil_scoped_release release;
    const auto began = std::chrono::steady_clock::now();
    Crew(static_cast<int>(parts)).run([&] {
        const std::size_t part = next++;
        const std::size_t from = n * part / parts, to = n * (part + 1) / parts;
        std::uint64_t sums[32] = {};
        std::size_t i = from;
        for (; i + 32 <= to; i += 32)
            for (int j = 0; j < 32; ++j) sums[j] += data[i + static_cast<std::size_t>(j)];
        std::uint64_t total = 0;
        for (const std::uint64_t sum : sums) total += sum;
        sink += total;
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// For tests: of the next occasions of this kind, the one after `occasions` others fails. -1: none.
static void fail_after(const std::string &what, std::int64_t occasions) {
    check(what == "thread" || what == "memory", "only threads and memory can be made to fail");
    (what == "thread" ? thread_fault : memory_fault).set(occasions);
}

NB_MODULE(_native, m) {
    m.doc() = "Native loops of the search core.";
    nb::set_leak_warnings(false);  // daemon threads keep what they search until the process is gone
    for (int c = 0; c < 256; ++c) SCALES[c] = static_cast<float>(std::exp2((c - 160) / 8.0));
    nb::class_<Segment>(m, "Segment", "A segment's arrays, checked and kept alive.")
        .def(nb::init<nb::dict, std::int64_t>(), nb::arg("arrays"), nb::arg("n_t"));
    nb::class_<NativeQuery>(m, "Query", "A query's lists and vectors.")
        .def(nb::init<Array<std::int32_t>, Matrix<float>, Array<float>, bool>(), nb::arg("lists"), nb::arg("vectors"),
             nb::arg("sentence"), nb::arg("floor"));
    m.def("search", &search_segments, nb::arg("instruction_set"), nb::arg("segments"), nb::arg("masks"), nb::arg("queries"),
          nb::arg("k"), nb::arg("prune"), nb::arg("without_zero"), nb::arg("at_least"), nb::arg("threads"),
          nb::arg("seconds"), nb::arg("range_rows") = 16384,
          "The k best of each query: scores, ordinals, segments, rows and counts; None if time ran out.");
    m.def("score_segment", &score_segment, nb::arg("instruction_set"), nb::arg("segment"), nb::arg("query"),
          "The score of every row, in multiples of 2^-32.");
    m.def("instruction_sets", &instruction_sets, "Kernels that this processor can run, the best first.");
    m.def("read_seconds", &read_seconds, nb::arg("words"), nb::arg("threads"), "Seconds to read an array once.");
    m.def("_fail_after", &fail_after, nb::arg("what"), nb::arg("occasions"), "For tests: let a thread start or an allocation fail.");
}
