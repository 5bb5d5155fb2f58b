// Colours of augment_patchify: bytes -> float pixels in [0, 1] -> jitter and gray.
//
// reference.py is the definition. All threads of a block process one crop, so every branch on a
// parameter is uniform. Constants in capitals come from constants.cuh, which kernel_source.py
// generates from the Python definition.

// K neighbouring pixels.
template <int K>
struct Pixels {
    float r[K], g[K], b[K];
};

// A row of params_NP, with the mean gray that the contrast blends with.
struct Augmentation {
    int order;
    float brightness, contrast, saturation, hue_sixths, sigma, mean_gray;
    bool gray, solarize, flip;

    __device__ explicit Augmentation(const float* row) {
        order = (int)row[ORDER];
        brightness = row[BRIGHTNESS];
        contrast = row[CONTRAST];
        saturation = row[SATURATION];
        hue_sixths = 6.f * (row[HUE] - rintf(row[HUE]));  // within half a turn
        sigma = row[SIGMA];
        gray = row[GRAY] > 0.f;
        solarize = row[SOLARIZE] > 0.f;
        flip = row[FLIP] > 0.f;
        mean_gray = 0.f;
    }

    // No colour changes: the result equals the definition to the last bit.
    __device__ bool only_moves() const {
        return order < 0 && !gray && !solarize && !(sigma > 0.f);
    }
};

constexpr float TWO_TO_23 = 8388608.f;

// 2^23 plus byte i of some words: the byte becomes the low bits of the mantissa. Conversions of
// integers run at an eighth of the rate of this.
__device__ __forceinline__ float byte_in_mantissa(const u32* words, int i) {
    return __uint_as_float(__byte_perm(words[i / 4], 0x4B000000u, 0x7650u | (i % 4)));
}

__device__ __forceinline__ float byte_as_float(const u32* words, int i) {
    return byte_in_mantissa(words, i) - TWO_TO_23;
}

// Byte i times a factor, rounded once: 2^23 times the factor is exact.
__device__ __forceinline__ float scaled_byte(const u32* words, int i, float factor) {
    return fmaf(byte_in_mantissa(words, i), factor, -TWO_TO_23 * factor);
}

// K pixels of three bytes, scaled to [0, 1].
template <int K>
__device__ __forceinline__ Pixels<K> unpacked(const u32* words) {
    Pixels<K> x;
#pragma unroll
    for (int i = 0; i < K; ++i) {
        x.r[i] = scaled_byte(words, 3 * i, 1.f / 255.f);
        x.g[i] = scaled_byte(words, 3 * i + 1, 1.f / 255.f);
        x.b[i] = scaled_byte(words, 3 * i + 2, 1.f / 255.f);
    }
    return x;
}

__device__ __forceinline__ float gray_of(float r, float g, float b) {
    return fmaf(GRAY_BLUE, b, fmaf(GRAY_GREEN, g, GRAY_RED * r));
}

// A blend of a colour with a gray level, clamped to [0, 1].
__device__ __forceinline__ float blend(float value, float factor, float part_of_gray) {
    return __saturatef(fmaf(factor, value, part_of_gray));
}

// HSV's hue turned, value and chroma kept. With the hue in sixths of the circle, counted from cyan, a
// channel is the smallest one plus the chroma times a trapezoid of the hue.
__device__ __forceinline__ void turn_hue(float& r, float& g, float& b, float sixths) {
    constexpr float ROUNDING = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number
    const float highest = fmaxf(r, fmaxf(g, b)), lowest = fminf(r, fminf(g, b));
    const float chroma = highest - lowest;
    const bool is_red = highest == r, is_green = highest == g;
    // All three differences first: a chain of conditions would become branches that diverge.
    const float of_red = g - b, of_green = b - r, of_blue = r - g;
    float difference = is_green ? of_green : of_blue, corner = is_green ? sixths - 1.f : sixths + 1.f;
    difference = is_red ? of_red : difference;
    corner = is_red ? sixths - 3.f : corner;
    // A gray has no hue: its chroma of 0 cancels h.
    float h = fmaf(difference, __fdividef(1.f, fmaxf(chroma, 1e-20f)), corner);
    h = fmaf(-6.f, fmaf(h, 1.f / 6.f, ROUNDING) - ROUNDING, h);  // within half a turn
    r = fmaf(chroma, __saturatef(fabsf(h) - 1.f), lowest);
    g = fmaf(chroma, __saturatef(2.f - fabsf(h + 1.f)), lowest);
    b = fmaf(chroma, __saturatef(2.f - fabsf(h - 1.f)), lowest);
}

// The steps of the jitter in the sample's order; with UNTIL_CONTRAST, those before the contrast.
template <bool UNTIL_CONTRAST, int K>
__device__ __forceinline__ void jitter(Pixels<K>& x, const Augmentation& a) {
    if (a.order < 0) return;
    u32 steps = JITTER_ORDERS[a.order];
#pragma unroll 1
    for (int step = 0; step < 4; ++step, steps >>= 8) {
        const u32 column = steps & 255u;
        if (column == BRIGHTNESS) {
#pragma unroll
            for (int i = 0; i < K; ++i) {
                x.r[i] = __saturatef(a.brightness * x.r[i]);
                x.g[i] = __saturatef(a.brightness * x.g[i]);
                x.b[i] = __saturatef(a.brightness * x.b[i]);
            }
        } else if (column == CONTRAST) {
            if (UNTIL_CONTRAST) return;
            const float part_of_gray = (1.f - a.contrast) * a.mean_gray;
#pragma unroll
            for (int i = 0; i < K; ++i) {
                x.r[i] = blend(x.r[i], a.contrast, part_of_gray);
                x.g[i] = blend(x.g[i], a.contrast, part_of_gray);
                x.b[i] = blend(x.b[i], a.contrast, part_of_gray);
            }
        } else if (column == SATURATION) {
#pragma unroll
            for (int i = 0; i < K; ++i) {
                const float part = (1.f - a.saturation) * gray_of(x.r[i], x.g[i], x.b[i]);
                x.r[i] = blend(x.r[i], a.saturation, part);
                x.g[i] = blend(x.g[i], a.saturation, part);
                x.b[i] = blend(x.b[i], a.saturation, part);
            }
        } else {
#pragma unroll
            for (int i = 0; i < K; ++i) turn_hue(x.r[i], x.g[i], x.b[i], a.hue_sixths);
        }
    }
}

__device__ __forceinline__ float solarized(float value) { return value >= 0.5f ? 1.f - value : value; }

// All colour steps before the blur.
template <int K>
__device__ __forceinline__ void colour(Pixels<K>& x, const Augmentation& a) {
    jitter<false>(x, a);
    if (a.gray) {
#pragma unroll
        for (int i = 0; i < K; ++i) x.r[i] = x.g[i] = x.b[i] = gray_of(x.r[i], x.g[i], x.b[i]);
    }
}

template <int K>
__device__ __forceinline__ void solarize(Pixels<K>& x) {
#pragma unroll
    for (int i = 0; i < K; ++i) {
        x.r[i] = solarized(x.r[i]);
        x.g[i] = solarized(x.g[i]);
        x.b[i] = solarized(x.b[i]);
    }
}
