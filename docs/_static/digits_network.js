/* Trains a small network on the digits, on one device or on replicas, with the mistakes that you ask for.

     const data = readDigits(JSON.parse(text));                  // what tools/break_it.py has written
     const training = new Training(data, 4, ['same-shard']);
     while (!training.done) training.step();                     // training.losses, training.copies

   The network has 64 inputs, 32 hidden units with ReLU and 10 outputs, and plain SGD with momentum trains it.
   tools/pictures.py takes the same steps in TensorFlow. As there, weights and gradients have 32 bits. */
(() => {
  'use strict';
  const [INPUTS, HIDDEN, CLASSES] = [64, 32, 10];
  // Where the biases of the first layer, the weights of the second and its biases begin in the row of all weights.
  const BIAS_1 = INPUTS * HIDDEN, WEIGHTS_2 = BIAS_1 + HIDDEN, BIAS_2 = WEIGHTS_2 + HIDDEN * CLASSES;
  const SIZE = BIAS_2 + CLASSES;

  /** Unpacks the file: a letter is a pixel from 0 to 16, a digit is a label, base64 holds the weights. */
  function readDigits(file) {
    const bright = letter => Math.round((letter.charCodeAt(0) - 97) * 255 / 16) / 255;
    const unpack = ({ pixels, labels }) => ({ images: Float32Array.from(pixels, bright), labels: Uint8Array.from(labels, Number) });
    const floats = text => new Float32Array(Uint8Array.from(atob(text), byte => byte.charCodeAt(0)).buffer);
    return { ...file, train: unpack(file.train), test: unpack(file.test), weights: file.weights.map(floats) };
  }

  /** Writes the outputs of the hidden layer and the probabilities of the ten digits for one image. */
  function forward(weights, images, image, hidden, probabilities) {
    for (let unit = 0; unit < HIDDEN; unit++) {
      let sum = weights[BIAS_1 + unit];
      for (let pixel = 0; pixel < INPUTS; pixel++) sum += images[image * INPUTS + pixel] * weights[pixel * HIDDEN + unit];
      hidden[unit] = Math.max(sum, 0);
    }
    let total = 0;
    for (let digit = 0; digit < CLASSES; digit++) {
      let sum = weights[BIAS_2 + digit];
      for (let unit = 0; unit < HIDDEN; unit++) sum += hidden[unit] * weights[WEIGHTS_2 + unit * CLASSES + digit];
      total += probabilities[digit] = Math.exp(sum);
    }
    for (let digit = 0; digit < CLASSES; digit++) probabilities[digit] /= total;
  }

  /** The sum of the losses of a share of a batch, and its gradient. */
  function backward(weights, { images, labels }, [begin, end]) {
    const gradient = new Float64Array(SIZE), hidden = new Float64Array(HIDDEN), errors = new Float64Array(CLASSES);
    let loss = 0;
    for (let image = begin; image < end; image++) {
      forward(weights, images, image, hidden, errors);
      loss -= Math.log(errors[labels[image]]);
      errors[labels[image]] -= 1; // so far these were probabilities
      for (let digit = 0; digit < CLASSES; digit++) gradient[BIAS_2 + digit] += errors[digit];
      for (let unit = 0; unit < HIDDEN; unit++) {
        if (hidden[unit] === 0) continue;
        let error = 0;
        for (let digit = 0; digit < CLASSES; digit++) {
          const place = WEIGHTS_2 + unit * CLASSES + digit;
          gradient[place] += hidden[unit] * errors[digit];
          error += weights[place] * errors[digit];
        }
        gradient[BIAS_1 + unit] += error;
        for (let pixel = 0; pixel < INPUTS; pixel++) gradient[pixel * HIDDEN + unit] += images[image * INPUTS + pixel] * error;
      }
    }
    return { loss, gradient };
  }

  const isBias = place => (place >= BIAS_1 && place < WEIGHTS_2) || place >= BIAS_2;

  class Training {
    /** Trains on `replicas` replicas; one is one device. Each mistake has the name of its switch. */
    constructor(data, replicas, mistakes = []) {
      Object.assign(this, { data, replicas, losses: [], mistakes: new Set(mistakes) });
      const seedOf = replica => (this.mistakes.has('no-seed') ? replica : 0);
      this.copies = Array.from({ length: replicas }, (_, replica) => data.weights[seedOf(replica)].slice());
      this.velocity = new Float32Array(SIZE); // the same on all replicas, which apply the same gradients
      this.stepsOfEpoch = Math.ceil(data.train.labels.length / data.batch);
      this.steps = data.epochs * this.stepsOfEpoch;
    }

    get done() {
      return this.losses.length === this.steps;
    }

    /** Which examples each replica gets in the next step. */
    shares() {
      const begin = (this.losses.length % this.stepsOfEpoch) * this.data.batch;
      const end = Math.min(begin + this.data.batch, this.data.train.labels.length);
      if (this.mistakes.has('same-shard')) {
        return this.copies.map(() => [begin, Math.min(begin + this.data.batch / this.replicas, end)]);
      }
      const most = Math.ceil((end - begin) / this.replicas); // a batch of 29 becomes 8, 8, 8 and 5
      return this.copies.map((_, replica) => [Math.min(begin + replica * most, end), Math.min(begin + (replica + 1) * most, end)]);
    }

    step() {
      const { l2, rate, momentum, train } = this.data;
      const shares = this.shares();
      const examples = shares.reduce((sum, [begin, end]) => sum + end - begin, 0);
      const total = new Float32Array(SIZE); // what the all-reduce gives to all
      let reported = 0;
      shares.forEach(([begin, end], replica) => {
        if (this.mistakes.has('lost-replica') && replica === this.replicas - 1) return;
        const weights = this.copies[replica];
        const { loss, gradient } = backward(weights, train, [begin, end]);
        const divisor = this.mistakes.has('mean-of-means') ? (end - begin) * this.replicas : examples;
        const penalty = this.mistakes.has('whole-penalty') ? l2 : l2 / this.replicas;
        reported += loss / divisor;
        for (let place = 0; place < SIZE; place++) {
          const pull = isBias(place) ? 0 : 2 * penalty * weights[place];
          total[place] += Math.fround(gradient[place] / divisor + pull);
        }
      });
      for (let place = 0; place < SIZE; place++) {
        this.velocity[place] = momentum * this.velocity[place] - rate * total[place];
        for (const weights of this.copies) weights[place] += this.velocity[place];
      }
      this.losses.push(reported);
    }

    /** The largest difference of a weight, on any replica, from the one at its place in `reference`. */
    distanceFrom(reference) {
      let largest = 0;
      for (const weights of this.copies) {
        for (let place = 0; place < SIZE; place++) largest = Math.max(largest, Math.abs(weights[place] - reference[place]));
      }
      return largest;
    }

    /** Which part of the test digits the first replica's weights name right. */
    accuracy() {
      const { images, labels } = this.data.test;
      const hidden = new Float64Array(HIDDEN), probabilities = new Float64Array(CLASSES);
      const right = labels.filter((label, image) => {
        forward(this.copies[0], images, image, hidden, probabilities);
        return probabilities.indexOf(Math.max(...probabilities)) === label;
      });
      return right.length / labels.length;
    }
  }

  Object.assign(window, { readDigits, Training });
})();
